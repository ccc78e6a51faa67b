// RUN: not isthmus-opt %s -p differentiate --reproducer %t 2>&1 | filecheck %s

// CHECK: 'mylib::scale': has no derivative
// CHECK-NEXT: register one with isthmus.register_derivative, or detach its operands
func.func @main(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4xf32> {autodiff.output}) {
  %y = prim.opaque %x {callee = "mylib::scale", args = [arg0]} : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
