// RUN: isthmus-opt %s -p "partition{strategy=min-traffic}" | filecheck %s --check-prefix=TRAFFIC
// RUN: isthmus-opt %s -p partition | filecheck %s --check-prefix=MEMORY
// The second contraction's operand is in memory after forward: kept, or written once more by backward.

// TRAFFIC:     func.func @forward
// TRAFFIC:       %[[S:.*]] = prim.sin
// TRAFFIC:       func.return {{.*}}, %[[S]] :
// TRAFFIC:     func.func @backward
// TRAFFIC-NOT:   prim.sin

// MEMORY:      func.func @backward
// MEMORY:        prim.sin
func.func @joint(%x: tensor<8x4xf32> {autodiff.primal}, %w: tensor<4x16xf32> {autodiff.primal, autodiff.wants_gradient}, %u: tensor<16x2xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<8x2xf32> {autodiff.tangent = 0})
    -> (tensor<8x2xf32> {autodiff.output}, tensor<4x16xf32> {autodiff.gradient = 1}, tensor<16x2xf32> {autodiff.gradient = 2}) {
  %h = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x16xf32>
  %s = prim.sin %h : tensor<8x16xf32>
  %y = prim.dot %s, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x2xf32>
  %du = prim.dot %s, %t {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x2xf32>
  %ds = prim.dot %t, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<8x16xf32>
  %c = prim.cos %h : tensor<8x16xf32>
  %dh = prim.mul %ds, %c : tensor<8x16xf32>
  %dw = prim.dot %x, %dh {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x16xf32>
  func.return %y, %dw, %du : tensor<8x2xf32>, tensor<4x16xf32>, tensor<16x2xf32>
}
