// RUN: isthmus-opt %s -p end-differentiation | filecheck %s

// CHECK: func.func @main(%x: tensor<4xf32>
// CHECK-NEXT: %[[S:.*]] = prim.mul %x, %x
// CHECK-NEXT: %[[Y:.*]] = prim.exp %[[S]]
// CHECK-NEXT: %[[Z:.*]] = prim.sin %[[Y]]
// CHECK-NEXT: func.return %[[Z]]
func.func @main(%x: tensor<4xf32> {autodiff.primal}) -> (tensor<4xf32> {autodiff.output}) {
  %y = autodiff.custom %x {saved = 0, gradients = [0]} ({
  ^bb0(%a: tensor<4xf32>):
    %s = prim.mul %a, %a : tensor<4xf32>
    %e = prim.exp %s : tensor<4xf32>
    autodiff.yield %e
  }, {
  ^bb0(%g: tensor<4xf32>):
    autodiff.yield %g
  }) : tensor<4xf32>
  %d = prim.stop_gradient %y : tensor<4xf32>
  %z = prim.sin %d : tensor<4xf32>
  func.return %z : tensor<4xf32>
}
