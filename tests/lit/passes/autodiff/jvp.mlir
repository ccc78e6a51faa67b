// RUN: isthmus-opt %s -p jvp | filecheck %s

// Forward mode is two transpositions; what the first one computed for its tangent is gone.
// CHECK: func.func @jvp(%x: {{.*}}, %direction: tensor<4xf32> {autodiff.primal, autodiff.direction = 0 : i64})
// CHECK-SAME: -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.output, autodiff.derivative = 0 : i64}) {
// CHECK-NEXT: %[[Y:.*]] = prim.sin %x
// CHECK-NEXT: %[[C:.*]] = prim.cos %x
// CHECK-NEXT: %[[D:.*]] = prim.mul %direction, %[[C]]
// CHECK-NEXT: func.return %[[Y]], %[[D]]
func.func @main(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4xf32> {autodiff.output}) {
  %y = prim.sin %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
