// RUN: isthmus-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

func.func @too_few_indices(%x: tensor<8x4xf32>) -> tensor<8xf32> {
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"]} ({
    // CHECK: map [d0] has 1 indices, operand 0 has 2 dims
    %v = kernel.load {operand = 0, map = [d0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

func.func @reduces_a_parallel_dim(%x: tensor<8xf32>) -> tensor<f32> {
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    // CHECK: dim 0 is no row dim
    %r = kernel.reduce %v {kind = "add", dims = [0]} : f32
    kernel.store %r {result = 0, map = []}
  }) : tensor<f32>
  func.return %y : tensor<f32>
}

// -----

func.func @unwritten_result(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: nothing writes result 0
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

func.func @row_before_parallel(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {
  // CHECK: parallel dims come before row dims
  %y = kernel.fused %x {sizes = [8, 2], classes = ["row", "parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<8x2xf32>
  func.return %y : tensor<8x2xf32>
}

// -----

func.func @accumulates_along_points(%x: tensor<8x2xf32>) -> tensor<2x8xf32> {
  %y = kernel.fused %x {sizes = [8, 2], classes = ["parallel", "row"], partitions = 2} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    // CHECK: the map of an accumulation reads row dims only
    kernel.accumulate %v {result = 0, kind = "add", map = [d0]}
  }) : tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}

// -----

func.func @wrong_partitions(%x: tensor<8x2xf32>) -> tensor<3x2xf32> {
  %y = kernel.fused %x {sizes = [8, 2], classes = ["parallel", "row"], partitions = 2} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    // CHECK: result 0 must have 2 leading entries, one per partition
    kernel.accumulate %v {result = 0, kind = "add", map = [d1]}
  }) : tensor<3x2xf32>
  func.return %y : tensor<3x2xf32>
}

// -----

func.func @undeclared_symbol(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: symbols s0 are missing in its symbols
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"]} ({
    %v = kernel.index {map = [<"s0">]} : i64
    %f = prim.convert %v : f32
    kernel.store %f {result = 0, map = [d0]}
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

func.func @products_are_no_indices(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"]} ({
    // CHECK: an index may be multiplied by sizes only
    %v = kernel.load {operand = 0, map = [d0*d0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

func.func @factor_of_both_sides(%a: tensor<8x4xf32>, %b: tensor<6x4xf32>) -> tensor<8x6xf32> {
  // CHECK: a depends on n
  %y = kernel.contract %a, %b {sizes = [8, 6, 4], classes = ["m", "n", "k"]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : f32
    %w = kernel.load {operand = 1, map = [d1, d2]} : f32
    %d = kernel.dot %w, %v {dims = [2]} : f32
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}

// -----

func.func @precision_of_halves(%a: tensor<8x4xbf16>, %b: tensor<6x4xbf16>) -> tensor<8x6xbf16> {
  // CHECK: precision is tf32, of factors in f32
  %y = kernel.contract %a, %b {sizes = [8, 6, 4], classes = ["m", "n", "k"]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : bf16
    %w = kernel.load {operand = 1, map = [d1, d2]} : bf16
    %d = kernel.dot %v, %w {dims = [2], precision = "tf32"} : bf16
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<8x6xbf16>
  func.return %y : tensor<8x6xbf16>
}

// -----

func.func @no_product(%a: tensor<8x4xf32>, %b: tensor<6x4xf32>) -> tensor<8x6xf32> {
  // CHECK: the body has one kernel.dot
  %y = kernel.contract %a, %b {sizes = [8, 6, 4], classes = ["m", "n", "k"]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : f32
    %w = kernel.load {operand = 1, map = [d1, d2]} : f32
    %p = prim.mul %v, %w : f32
    kernel.store %p {result = 0, map = [d0, d1]}
  }) : tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}

// -----

func.func @product_and_inner_dim(%a: tensor<8x4xf32>, %b: tensor<6x4xf32>) -> tensor<8x6xf32> {
  // CHECK: 'prim.add' depends on the product and on k
  %y = kernel.contract %a, %b {sizes = [8, 6, 4], classes = ["m", "n", "k"]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : f32
    %w = kernel.load {operand = 1, map = [d1, d2]} : f32
    %d = kernel.dot %v, %w {dims = [2]} : f32
    %p = prim.add %d, %v : f32
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}

// -----

func.func @stored_once_per_row(%a: tensor<8x4xf32>, %b: tensor<6x4xf32>) -> tensor<8x6xf32> {
  // CHECK: a store writes once per point of batch, m and n
  %y = kernel.contract %a, %b {sizes = [8, 6, 4], classes = ["m", "n", "k"]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : f32
    %w = kernel.load {operand = 1, map = [d1, d2]} : f32
    %d = kernel.dot %v, %w {dims = [2]} : f32
    %z = kernel.load {operand = 0, map = [d0, 0]} : f32
    kernel.store %z {result = 0, map = [d0, 0]}
  }) : tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}
