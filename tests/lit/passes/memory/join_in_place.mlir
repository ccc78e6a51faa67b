// RUN: isthmus-opt %s -p 'join-in-place{least=1024}' | filecheck %s
// RUN: isthmus-opt %s -p 'join-in-place{least=1024},schedule,plan-memory' | filecheck %s --check-prefix=PLANNED

// Products that are only put together are made in their parts of the result: by place and first element.
// CHECK-LABEL: @products
// CHECK:       %[[A:.*]] = kernel.extern %a, %w
// CHECK:       %[[B:.*]] = kernel.extern %b, %w
// CHECK-NEXT:  %[[Y:.*]] = kernel.join %[[B]], %[[A]] : tensor<32x10xf32>
// CHECK-NEXT:  func.return %[[Y]]

// PLANNED-LABEL: @products
// PLANNED-SAME:  isthmus.temporary_bytes = #isthmus.lit<0>
// PLANNED:       kernel.extern %a, %w {{.*}}places = {{\[\[}}"output", 0, 160]]
// PLANNED:       kernel.extern %b, %w {{.*}}places = {{\[\[}}"output", 0, 0]]
// PLANNED:       kernel.join {{.*}}places = {{\[\[}}"output", 0]]
func.func @products(%a: tensor<16x8xf32>, %b: tensor<16x8xf32>, %w: tensor<8x10xf32>) -> tensor<32x10xf32> {
  %x = kernel.extern %a, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x10xf32>
  %z = kernel.extern %b, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x10xf32>
  %y = kernel.fused %x, %z {sizes = [16, 10], classes = ["parallel", "parallel"]} ({
    %p = kernel.load {operand = 0, map = [d0, d1]} : f32
    %q = kernel.load {operand = 1, map = [d0, d1]} : f32
    kernel.store %q {result = 0, map = [d0, d1]}
    kernel.store %p {result = 0, map = [d0 + 16, d1]}
  }) : tensor<32x10xf32>
  func.return %y : tensor<32x10xf32>
}

// An argument has memory already.
// CHECK-LABEL: @argument
// CHECK-NOT:   kernel.join
// CHECK:       func.return
func.func @argument(%a: tensor<16x8xf32>, %b: tensor<16x10xf32>, %w: tensor<8x10xf32>) -> tensor<32x10xf32> {
  %x = kernel.extern %a, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x10xf32>
  %y = kernel.fused %x, %b {sizes = [16, 10], classes = ["parallel", "parallel"]} ({
    %p = kernel.load {operand = 0, map = [d0, d1]} : f32
    %q = kernel.load {operand = 1, map = [d0, d1]} : f32
    kernel.store %p {result = 0, map = [d0, d1]}
    kernel.store %q {result = 0, map = [d0 + 16, d1]}
  }) : tensor<32x10xf32>
  func.return %y : tensor<32x10xf32>
}

// Columns of the result are no part of its memory.
// CHECK-LABEL: @columns
// CHECK-NOT:   kernel.join
// CHECK:       func.return
func.func @columns(%a: tensor<16x8xf32>, %b: tensor<16x8xf32>, %w: tensor<8x10xf32>) -> tensor<16x20xf32> {
  %x = kernel.extern %a, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x10xf32>
  %z = kernel.extern %b, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x10xf32>
  %y = kernel.fused %x, %z {sizes = [16, 10], classes = ["parallel", "parallel"]} ({
    %p = kernel.load {operand = 0, map = [d0, d1]} : f32
    %q = kernel.load {operand = 1, map = [d0, d1]} : f32
    kernel.store %p {result = 0, map = [d0, d1]}
    kernel.store %q {result = 0, map = [d0, d1 + 10]}
  }) : tensor<16x20xf32>
  func.return %y : tensor<16x20xf32>
}

// What is turned on the way is no copy.
// CHECK-LABEL: @turned
// CHECK-NOT:   kernel.join
// CHECK:       func.return
func.func @turned(%a: tensor<16x8xf32>, %b: tensor<16x8xf32>, %w: tensor<8x16xf32>) -> tensor<32x16xf32> {
  %x = kernel.extern %a, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x16xf32>
  %z = kernel.extern %b, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<16x16xf32>
  %y = kernel.fused %x, %z {sizes = [16, 16], classes = ["parallel", "parallel"]} ({
    %p = kernel.load {operand = 0, map = [d0, d1]} : f32
    %q = kernel.load {operand = 1, map = [d1, d0]} : f32
    kernel.store %p {result = 0, map = [d0, d1]}
    kernel.store %q {result = 0, map = [d0 + 16, d1]}
  }) : tensor<32x16xf32>
  func.return %y : tensor<32x16xf32>
}

// Little is copied by one kernel.
// CHECK-LABEL: @small
// CHECK-NOT:   kernel.join
// CHECK:       func.return
func.func @small(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>, %w: tensor<8x10xf32>) -> tensor<8x10xf32> {
  %x = kernel.extern %a, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<4x10xf32>
  %z = kernel.extern %b, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]]} : tensor<4x10xf32>
  %y = kernel.fused %x, %z {sizes = [4, 10], classes = ["parallel", "parallel"]} ({
    %p = kernel.load {operand = 0, map = [d0, d1]} : f32
    %q = kernel.load {operand = 1, map = [d0, d1]} : f32
    kernel.store %p {result = 0, map = [d0, d1]}
    kernel.store %q {result = 0, map = [d0 + 4, d1]}
  }) : tensor<8x10xf32>
  func.return %y : tensor<8x10xf32>
}
