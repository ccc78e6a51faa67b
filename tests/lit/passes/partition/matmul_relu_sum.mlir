// RUN: isthmus-opt %s -p "partition{strategy=min-cut}" | filecheck %s --check-prefixes=CHECK,CUT
// RUN: isthmus-opt %s -p "partition{strategy=default}" | filecheck %s --check-prefixes=CHECK,ALL
// ROW: T11
// ROW: T12
// ROW: M3
// ROW: M6

// (x @ w).relu().sum(), x without a gradient: forward hands over x, which is alive anyway, and 16 bytes of mask.
// Nobody computes the contraction twice; with `default` its 64 bytes are kept.
// CHECK-LABEL: func.func @forward
// CUT-SAME:    tensor<4x4xf32> {autodiff.saved = 0 : i64}, tensor<4x4xi1> {autodiff.saved = 1 : i64})
// ALL-SAME:    tensor<4x4xf32> {autodiff.saved = 0 : i64}, tensor<4x4xf32> {autodiff.saved = 1 : i64})
// CHECK:         prim.dot
// CUT:           %[[MASK:.*]] = prim.cmp {{.*}} {predicate = "le"}
// CUT-NEXT:      func.return {{.*}}, %x, %[[MASK]] :
// CHECK-LABEL: func.func @backward
// CUT-NOT:       prim.cmp
// CHECK:         prim.transpose %x
// CHECK:         %[[DW:.*]] = prim.dot
// CHECK-NEXT:    func.return %[[DW]] :
func.func @joint(
    %x: tensor<4x4xf32> {autodiff.primal},
    %w: tensor<4x4xf32> {autodiff.primal, autodiff.wants_gradient},
    %t: tensor<f32> {autodiff.tangent = 0}
) -> (tensor<f32> {autodiff.output}, tensor<4x4xf32> {autodiff.gradient = 1}) {
  %h = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
  %r = prim.relu %h : tensor<4x4xf32>
  %y = prim.reduce %r {kind = "add", dims = [0, 1]} : tensor<f32>
  %zero = prim.const {value = 0.0} : tensor<4x4xf32>
  %mask = prim.cmp %h, %zero {predicate = "le"} : tensor<4x4xi1>
  %g = prim.broadcast %t {dims = []} : tensor<4x4xf32>
  %gh = prim.select %mask, %zero, %g : tensor<4x4xf32>
  %xt = prim.transpose %x {perm = [1, 0]} : tensor<4x4xf32>
  %dw = prim.dot %xt, %gh {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
  func.return %y, %dw : tensor<f32>, tensor<4x4xf32>
}
