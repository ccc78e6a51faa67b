// RUN: isthmus-opt %s -p differentiate | filecheck %s

// The gradient that the program asks for stands where it was asked, in ordinary ops.
// CHECK: func.func @joint
// CHECK-NEXT: %[[Y:.*]] = prim.exp %x : tensor<f32>
// CHECK-NEXT: prim.const {value = 1.0} : tensor<f32>
// CHECK-NOT: autodiff.vjp
// CHECK: %[[P:.*]] = prim.mul %[[Y]], %[[Y]]
// CHECK: func.return %[[P]], %
func.func @main(%x: tensor<f32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<f32> {autodiff.output}) {
  %y = prim.exp %x : tensor<f32>
  %g = autodiff.vjp %y, %x {outs = 1, ins = 1, seeds = [none], create_graph = true, present = [0]} : tensor<f32>
  %p = prim.mul %g, %g : tensor<f32>
  func.return %p : tensor<f32>
}
