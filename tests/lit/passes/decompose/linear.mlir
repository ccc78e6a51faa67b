// RUN: isthmus-opt %s -p decompose | filecheck %s
// ROW: P1

// A composite becomes a contraction and elementwise primitives; nothing broadcasts by itself.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[Y:.*]] = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<4x8xf32>
// CHECK-NEXT: %[[B:.*]] = prim.broadcast %b {dims = [1]} : tensor<4x8xf32>
// CHECK-NEXT: %[[S:.*]] = prim.add %[[Y]], %[[B]] : tensor<4x8xf32>
// CHECK-NEXT: %[[R:.*]] = prim.relu %[[S]] : tensor<4x8xf32>
// CHECK-NEXT: func.return %[[R]]
// CHECK-NOT: aten.
func.func @main(%x: tensor<4x3xf32>, %w: tensor<8x3xf32>, %b: tensor<8xf32>) -> (tensor<4x8xf32>) {
  %y = aten.call %x, %w, %b {overload = "linear.default", args = [arg0, arg1, arg2]} : tensor<4x8xf32>
  %r = aten.call %y {overload = "relu.default", args = [arg0]} : tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}
