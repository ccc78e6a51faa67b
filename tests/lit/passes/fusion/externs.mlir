// RUN: isthmus-opt %s -p fuse | filecheck %s

// A transpose in front of a contraction is a view of the buffer.
// CHECK-LABEL: @transposed_operand
// CHECK-NEXT:  kernel.extern %{{.*}}, %{{.*}} {symbol = "prim.dot", {{.*}}, views = [none, {{\[\[}}4, 16], [1, 4], 0], none], cost = 1024.0}
func.func @transposed_operand(%x: tensor<8x4xf32>, %w: tensor<16x4xf32>) -> tensor<8x16xf32> {
  %t = prim.transpose %w {perm = [1, 0]} : tensor<4x16xf32>
  %d = prim.dot %x, %t {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x16xf32>
  func.return %d : tensor<8x16xf32>
}

// Rows that no BLAS call walks are copied first.
// CHECK-LABEL: @no_matrix
// CHECK:       kernel.fused
// CHECK:       kernel.extern %fused{{.*}}, %{{.*}} {symbol = "prim.dot", args = {{.*}}, cost
func.func @no_matrix(%x: tensor<8x4xf32>, %w: tensor<2x16xf32>) -> tensor<4x16xf32> {
  %s = prim.slice %x {dim = 0, start = 0, limit = 4, stride = 2} : tensor<2x4xf32>
  %r = prim.slice %s {dim = 1, start = 0, limit = 4, stride = 2} : tensor<2x2xf32>
  %d = prim.dot %r, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<2x16xf32>
  %c = prim.concat %d, %d {dim = 0} : tensor<4x16xf32>
  func.return %c : tensor<4x16xf32>
}

// A bias with nothing after it is the call's.
// CHECK-LABEL: @bias
// CHECK-NEXT:  kernel.extern %{{.*}}, %{{.*}}, %{{.*}} {{{.*}}["bias", "c"]]{{.*}}} : tensor<8x16xf32>
// CHECK-NEXT:  func.return
func.func @bias(%x: tensor<8x4xf32>, %w: tensor<4x16xf32>, %b: tensor<16xf32>) -> tensor<8x16xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x16xf32>
  %bb = prim.broadcast %b {dims = [1]} : tensor<8x16xf32>
  %s = prim.add %d, %bb : tensor<8x16xf32>
  func.return %s : tensor<8x16xf32>
}

// With an activation after it the bias costs nothing in that kernel.
// CHECK-LABEL: @bias_and_activation
// CHECK-NEXT:  kernel.extern %{{.*}}, %{{.*}} {symbol = "prim.dot"
// CHECK-NEXT:  kernel.fused
// CHECK:         prim.add
// CHECK-NEXT:    prim.tanh
func.func @bias_and_activation(%x: tensor<8x4xf32>, %w: tensor<4x16xf32>, %b: tensor<16xf32>) -> tensor<8x16xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x16xf32>
  %bb = prim.broadcast %b {dims = [1]} : tensor<8x16xf32>
  %s = prim.add %d, %bb : tensor<8x16xf32>
  %t = prim.tanh %s : tensor<8x16xf32>
  func.return %t : tensor<8x16xf32>
}

// A result in another shape is the same bytes.
// CHECK-LABEL: @reshaped_result
// CHECK:       %[[R:.*]] = kernel.reshape %{{.*}} : tensor<2x4x16xf32>
// CHECK-NEXT:  func.return %[[R]]
func.func @reshaped_result(%x: tensor<8x4xf32>, %w: tensor<4x16xf32>) -> tensor<2x4x16xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x16xf32>
  %r = prim.reshape %d : tensor<2x4x16xf32>
  func.return %r : tensor<2x4x16xf32>
}

// A custom operator gets its operands in memory as it would eagerly.
// CHECK-LABEL: @custom
// CHECK:       kernel.fused
// CHECK:       kernel.extern %fused{{.*}} {symbol = "mylib::f.default", args = [arg0]} : tensor<4xf32>
func.func @custom(%x: tensor<4x2xf32>) -> tensor<4xf32> {
  %t = prim.transpose %x {perm = [1, 0]} : tensor<2x4xf32>
  %y = prim.opaque %t {callee = "mylib::f.default", args = [arg0]} : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// Attention keeps heads inside: its output is known to lie as [B, L, H, E], so the contraction after it needs no copy.
// CHECK-LABEL: @attention_layout
// CHECK:       %[[O:.*]], %{{.*}} = kernel.extern {{.*}}layouts = {{\[\[}}128, 4, 8, 1], [32, 1, 2]]
// CHECK-NEXT:  kernel.extern %[[O]], %{{.*}} {symbol = "prim.dot"
// CHECK-NEXT:  func.return
func.func @attention_layout(%x: tensor<2x16x2x4xf32>, %w: tensor<8x8xf32>) -> tensor<2x16x8xf32> {
  %q = prim.transpose %x {perm = [0, 2, 1, 3]} : tensor<2x2x16x4xf32>
  %o, %l = prim.opaque %q {callee = "_scaled_dot_product_flash_attention_for_cpu.default", args = [arg0, arg0, arg0, 0.0, true, none, 0.5]} : tensor<2x2x16x4xf32>, tensor<2x2x16xf32>
  %t = prim.transpose %o {perm = [0, 2, 1, 3]} : tensor<2x16x2x4xf32>
  %r = prim.reshape %t : tensor<2x16x8xf32>
  %d = prim.dot %r, %w {batch_a = [], batch_b = [], contract_a = [2], contract_b = [0]} : tensor<2x16x8xf32>
  func.return %d : tensor<2x16x8xf32>
}

// So does a query that is a part of a wider row: its output has the same order of dims, and no gaps.
// CHECK-LABEL: @attention_layout_of_a_part
// CHECK:       %[[O:.*]], %{{.*}} = kernel.extern {{.*}}layouts = {{\[\[}}128, 4, 8, 1], [32, 1, 2]]
// CHECK-NEXT:  kernel.extern %[[O]], %{{.*}} {symbol = "prim.dot"
// CHECK-NEXT:  func.return
func.func @attention_layout_of_a_part(%x: tensor<2x16x3x2x4xf32>, %w: tensor<8x8xf32>) -> tensor<2x16x8xf32> {
  %p = prim.slice %x {dim = 2, start = 1, limit = 2, stride = 1} : tensor<2x16x1x2x4xf32>
  %h = prim.reshape %p : tensor<2x16x2x4xf32>
  %q = prim.transpose %h {perm = [0, 2, 1, 3]} : tensor<2x2x16x4xf32>
  %o, %l = prim.opaque %q {callee = "_scaled_dot_product_flash_attention_for_cpu.default", args = [arg0, arg0, arg0, 0.0, true, none, 0.5]} : tensor<2x2x16x4xf32>, tensor<2x2x16xf32>
  %t = prim.transpose %o {perm = [0, 2, 1, 3]} : tensor<2x16x2x4xf32>
  %r = prim.reshape %t : tensor<2x16x8xf32>
  %d = prim.dot %r, %w {batch_a = [], batch_b = [], contract_a = [2], contract_b = [0]} : tensor<2x16x8xf32>
  func.return %d : tensor<2x16x8xf32>
}
