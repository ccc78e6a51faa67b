// RUN: isthmus-opt %s -p differentiate,dce | filecheck %s
// RUN: isthmus-opt %s -p 'differentiate{arguments=1}' | filecheck %s --check-prefix=ALL
// ROW: A3, A6, A15

// The first layer is frozen: backward has the second weight's product only.
// CHECK: prim.dot %x, %w1
// CHECK: prim.dot %{{.*}}, %w2
// CHECK: prim.dot
// CHECK-NOT: prim.dot
// CHECK: func.return

// Asked for w1 only, w2's product is not formed.
// ALL: -> (tensor<4x4xf32> {autodiff.output}, tensor<4x4xf32> {autodiff.gradient = 1
// ALL-COUNT-4: prim.dot
// ALL-NOT: prim.dot
// ALL: func.return
func.func @main(%x: tensor<4x4xf32> {autodiff.primal}, %w1: tensor<4x4xf32> {autodiff.primal},
                %w2: tensor<4x4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4x4xf32> {autodiff.output}) {
  %a = prim.dot %x, %w1 {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
  %h = prim.tanh %a : tensor<4x4xf32>
  %y = prim.dot %h, %w2 {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}
