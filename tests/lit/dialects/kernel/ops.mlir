// RUN: isthmus-opt %s | isthmus-opt | filecheck %s

// Maps print in their normal form and read back.
// CHECK-LABEL: @row_kernel
// CHECK: kernel.fused %{{.*}}, %{{.*}} {sizes = [8, 1024], classes = ["parallel", "row"], partitions = 2, vector = 1} ({
// CHECK-NEXT: kernel.load {operand = 0, map = [d0, d1]} : f32
// CHECK-NEXT: kernel.load {operand = 1, map = [d0]} : i64
// CHECK-NEXT: kernel.check %{{.*}} {bound = 1024, dim = 1} : i64
// CHECK-NEXT: kernel.load %{{.*}} {operand = 0, map = [d0, v0]} : f32
// CHECK-NEXT: kernel.load {operand = 0, map = [(d0 + 1) mod 8, (d1*4) floordiv 7 + 3]} : f32
func.func @row_kernel(%x: tensor<8x1024xf32>, %i : tensor<8xi64>) -> (tensor<8x1024xf32>, tensor<8xf32>) {
  %y, %m = kernel.fused %x, %i {sizes = [8, 1024], classes = ["parallel", "row"], partitions = 2, vector = 1} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %n = kernel.load {operand = 1, map = [d0]} : i64
    %c = kernel.check %n {bound = 1024, dim = 1} : i64
    %p = kernel.load %c {operand = 0, map = [d0, v0]} : f32
    %q = kernel.load {operand = 0, map = [(d0 + 1) mod 8, 3 + d1*4 floordiv 7]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %r : f32
    %e = prim.sub %d, %p : f32
    %f = prim.add %e, %q : f32
    kernel.store %f {result = 0, map = [d0, d1]}
    kernel.store %r {result = 1, map = [d0]}
  }) : tensor<8x1024xf32>, tensor<8xf32>
  func.return %y, %m : tensor<8x1024xf32>, tensor<8xf32>
}

// Sizes, symbolic and literal, stand in angle brackets where they are not numbers.
// CHECK-LABEL: @symbolic
// CHECK: kernel.load {operand = 0, map = [d0*<"2*s0">, <"s0">]} : f32
func.func @symbolic(%x: tensor<?x?xf32, #isthmus.lit<[<"2*s0*s0">, <"s0 + 1">]>>) -> tensor<?xf32, #isthmus.lit<[<"s0">]>> {
  %y = kernel.fused %x {sizes = [<"s0">], classes = ["parallel"], symbols = ["s0"]} ({
    %v = kernel.load {operand = 0, map = [<"s0">*d0*2 + d0 - d0, <"s0">]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"s0">]>>
  func.return %y : tensor<?xf32, #isthmus.lit<[<"s0">]>>
}

// CHECK-LABEL: @argmax
// CHECK: kernel.reduce %{{.*}}, %{{.*}} {kind = "argmax", dims = [0]} : f32, i64
func.func @argmax(%x: tensor<5xf32>) -> tensor<i64> {
  %y = kernel.fused %x {sizes = [5], classes = ["row"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %i = kernel.index {map = [d0]} : i64
    %m, %k = kernel.reduce %v, %i {kind = "argmax", dims = [0]} : f32, i64
    kernel.store %k {result = 0, map = []}
  }) : tensor<i64>
  func.return %y : tensor<i64>
}

// A scatter: rows in order inside each parallel point.
// CHECK-LABEL: @scatter
// CHECK: initial = [0]
// CHECK: kernel.store %{{.*}}, %{{.*}} {result = 0, map = [v0, d0], kind = "add"}
func.func @scatter(%x: tensor<5x3xf32>, %u: tensor<7x3xf32>, %i: tensor<7xi64>) -> tensor<5x3xf32> {
  %y = kernel.fused %x, %u, %i {sizes = [3, 7], classes = ["parallel", "row"], initial = [0]} ({
    %v = kernel.load {operand = 1, map = [d1, d0]} : f32
    %n = kernel.load {operand = 2, map = [d1]} : i64
    %c = kernel.check %n {bound = 5, dim = 0} : i64
    kernel.store %v, %c {result = 0, map = [v0, d0], kind = "add"}
  }) : tensor<5x3xf32>
  func.return %y : tensor<5x3xf32>
}

// CHECK-LABEL: @dot
// CHECK: kernel.extern %{{.*}}, %{{.*}} {symbol = "prim.dot",
// CHECK-SAME: views = [none, {{\[\[}}4, 3], [1, 4], 0], none], cost = 24.0} : tensor<1x3xf32>
func.func @dot(%a: tensor<1x4xf32>, %b: tensor<3x4xf32>) -> tensor<1x3xf32> {
  %y = kernel.extern %a, %b {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]],
    views = [none, [[4, 3], [1, 4], 0], none], cost = 24.0} : tensor<1x3xf32>
  func.return %y : tensor<1x3xf32>
}

// A contraction: what is computed of one factor, and of the product.
// CHECK-LABEL: @contract
// CHECK: kernel.contract %{{.*}}, %{{.*}} {sizes = [2, 8, 6, 4], classes = ["batch", "m", "n", "k"]} ({
// CHECK: kernel.dot %{{.*}}, %{{.*}} {dims = [3], precision = "tf32"} : f32
func.func @contract(%a: tensor<2x8x4xf32>, %b: tensor<2x6x4xf32>) -> (tensor<2x8x6xf32>, tensor<1x6xf32>) {
  %y, %s = kernel.contract %a, %b {sizes = [2, 8, 6, 4], classes = ["batch", "m", "n", "k"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1, d3]} : f32
    %e = prim.exp %v : f32
    %w = kernel.load {operand = 1, map = [d0, d2, d3]} : f32
    %d = kernel.dot %e, %w {dims = [3], precision = "tf32"} : f32
    %t = prim.tanh %d : f32
    kernel.store %t {result = 0, map = [d0, d1, d2]}
    kernel.accumulate %d {result = 1, map = [d2], kind = "add"}
  }) : tensor<2x8x6xf32>, tensor<1x6xf32>
  func.return %y, %s : tensor<2x8x6xf32>, tensor<1x6xf32>
}
