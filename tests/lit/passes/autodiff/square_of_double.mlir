// RUN: isthmus-opt %s -p differentiate,simplify | filecheck %s
// ROW: A2

// (2x)²: the power's rule first (2·y), then the product's (·2), each once.
// CHECK: func.func @joint
// CHECK: %[[Y:.*]] = prim.mul %x, %[[TWO:.*]] : tensor<f32>
// CHECK-NEXT: %[[Z:.*]] = prim.pow %[[Y]], %[[TWO]]
// CHECK-NEXT: %[[SLOPE:.*]] = prim.mul %[[TWO]], %[[Y]]
// CHECK-NEXT: %[[DY:.*]] = prim.mul %tangent, %[[SLOPE]]
// CHECK-NEXT: %[[DX:.*]] = prim.mul %[[DY]], %[[TWO]]
// CHECK-NEXT: func.return %[[Z]], %[[DX]]
func.func @main(%x: tensor<f32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<f32> {autodiff.output}) {
  %two = prim.const {value = 2.0} : tensor<f32>
  %y = prim.mul %x, %two : tensor<f32>
  %z = prim.pow %y, %two : tensor<f32>
  func.return %z : tensor<f32>
}
