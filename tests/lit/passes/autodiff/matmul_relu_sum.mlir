// RUN: isthmus-opt %s -p differentiate,simplify | filecheck %s
// ROW: T2, T6, T7, T12

// sum's derivative is a broadcast, relu's a comparison and a selection, the product's a product; x wants no gradient.
// CHECK: func.func @joint(%x: {{.*}}autodiff.primal}, %w: {{.*}}autodiff.wants_gradient}, %tangent: tensor<f32> {autodiff.tangent = 0
// CHECK-SAME: -> (tensor<f32> {autodiff.output}, tensor<4x4xf32> {autodiff.gradient = 1
// CHECK-NEXT: %dot = prim.dot %x, %w
// CHECK-NEXT: %relu = prim.relu %dot
// CHECK-NEXT: %reduce = prim.reduce %relu {kind = "add", dims = [0, 1]} : tensor<f32>
// CHECK-NEXT: %broadcast = prim.broadcast %tangent {dims = []} : tensor<4x4xf32>
// CHECK-NEXT: %const = prim.const {value = 0.0} : tensor<4x4xf32>
// CHECK-NEXT: %cmp = prim.cmp %relu, %const {predicate = "le"} : tensor<4x4xi1>
// CHECK-NEXT: %select = prim.select %cmp, %const, %broadcast : tensor<4x4xf32>
// CHECK-NEXT: %dot_1 = prim.dot %x, %select {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x4xf32>
// CHECK-NEXT: func.return %reduce, %dot_1
func.func @main(%x: tensor<4x4xf32> {autodiff.primal}, %w: tensor<4x4xf32> {autodiff.primal, autodiff.wants_gradient})
    -> (tensor<f32> {autodiff.output}) {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
  %r = prim.relu %d : tensor<4x4xf32>
  %y = prim.reduce %r {kind = "add", dims = [0, 1]} : tensor<f32>
  func.return %y : tensor<f32>
}
