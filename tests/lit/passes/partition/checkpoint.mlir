// RUN: isthmus-opt %s -p partition | filecheck %s
// ROW: M4

// Both contractions stand in a checkpoint region; the policy saves the first, so only the second runs again.
// CHECK-LABEL: func.func @forward
// CHECK:         %[[FIRST:.*]] = prim.dot %x, %w
// CHECK:         func.return {{.*}}, %w, %[[FIRST]] :
// CHECK-LABEL: func.func @backward
// CHECK:         %[[MIDDLE:.*]] = prim.sin
// CHECK-NEXT:    %[[SECOND:.*]] = prim.dot %[[MIDDLE]], %w
// CHECK-NEXT:    prim.cos %[[SECOND]]
func.func @joint(
    %x: tensor<4x4xf32> {autodiff.primal, autodiff.wants_gradient},
    %w: tensor<4x4xf32> {autodiff.primal},
    %t: tensor<4x4xf32> {autodiff.tangent = 0}
) -> (tensor<4x4xf32> {autodiff.output}, tensor<4x4xf32> {autodiff.gradient = 0}) {
  %a = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0], autodiff.recompute = "must_save"} : tensor<4x4xf32>
  %m = prim.sin %a {autodiff.recompute = "must_recompute"} : tensor<4x4xf32>
  %b = prim.dot %m, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0], autodiff.recompute = "must_recompute"} : tensor<4x4xf32>
  %y = prim.sin %b : tensor<4x4xf32>
  %c = prim.cos %b : tensor<4x4xf32>
  %gb = prim.mul %t, %c : tensor<4x4xf32>
  %gm = prim.dot %gb, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<4x4xf32>
  %ca = prim.cos %a : tensor<4x4xf32>
  %ga = prim.mul %gm, %ca : tensor<4x4xf32>
  %gx = prim.dot %ga, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<4x4xf32>
  func.return %y, %gx : tensor<4x4xf32>, tensor<4x4xf32>
}
