// RUN: isthmus-opt %s -p 'fuse{contractions=own}' | filecheck %s
// RUN: isthmus-opt %s -p fuse | filecheck %s --check-prefix LIBRARY

// LIBRARY-NOT: kernel.contract

// A factor that only the product reads is computed where it is packed.
// CHECK-LABEL: @prologue
// CHECK-NEXT:  kernel.contract %{{.*}}, %{{.*}}, %{{.*}} {sizes = [64, 64, 64], classes = ["m", "n", "k"], cost = 524288.0} ({
// CHECK:         kernel.load {operand = 1, map = [d2]}
// CHECK:         prim.mul
// CHECK:         kernel.dot %mul, %{{.*}} {dims = [2]} : f32
// CHECK-NEXT:    kernel.store %dot
// CHECK-NOT:     kernel.
// CHECK:         func.return
func.func @prologue(%x: tensor<64x64xf32>, %s: tensor<64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %b = prim.broadcast %s {dims = [1]} : tensor<64x64xf32>
  %m = prim.mul %x, %b : tensor<64x64xf32>
  %d = prim.dot %m, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}

// Two inner dims that lie side by side are one; what reads the product is computed from the tiles, sums of columns too.
// CHECK-LABEL: @epilogue
// CHECK-NEXT:  kernel.contract %{{.*}} {sizes = [512, 64, 256], classes = ["m", "n", "k"], {{.*}}} ({
// CHECK:         %[[D:.*]] = kernel.dot %{{.*}}, %{{.*}} {dims = [2]} : f32
// CHECK-NEXT:    %[[T:.*]] = prim.tanh %[[D]]
// CHECK-DAG:     kernel.store %[[D]]
// CHECK-DAG:     kernel.store %[[T]]
// CHECK-DAG:     kernel.accumulate %[[T]] {{.*}}map = [d1], kind = "add"}
func.func @epilogue(%x: tensor<4x64x512xf32>, %w: tensor<4x64x64xf32>)
    -> (tensor<512x64xf32>, tensor<512x64xf32>, tensor<64xf32>) {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [0, 1], contract_b = [0, 1]} : tensor<512x64xf32>
  %t = prim.tanh %d : tensor<512x64xf32>
  %s = prim.reduce %t {kind = "add", dims = [0]} : tensor<64xf32>
  func.return %d, %t, %s : tensor<512x64xf32>, tensor<512x64xf32>, tensor<64xf32>
}

// A product alone is the library's.
// CHECK-LABEL: @alone
// CHECK-NEXT:  kernel.extern
func.func @alone(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}

// So is a small one.
// CHECK-LABEL: @small
// CHECK:       kernel.extern
func.func @small(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %m = prim.neg %x : tensor<8x8xf32>
  %d = prim.dot %m, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x8xf32>
  func.return %d : tensor<8x8xf32>
}

// A factor that the caller gets too has its buffer anyway.
// CHECK-LABEL: @factor_is_returned
// CHECK:       kernel.fused
// CHECK:       kernel.extern
func.func @factor_is_returned(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %m = prim.neg %x : tensor<64x64xf32>
  %d = prim.dot %m, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %m, %d : tensor<64x64xf32>, tensor<64x64xf32>
}

// What is dear is computed once, in a kernel of its own.
// CHECK-LABEL: @dear_factor
// CHECK:       kernel.fused
// CHECK:         prim.erf
// CHECK:       kernel.extern
func.func @dear_factor(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %e = prim.erf %x : tensor<64x64xf32>
  %f = prim.erf %e : tensor<64x64xf32>
  %d = prim.dot %f, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}

// An epilogue has no rows: softmax is a kernel of its own, and says why.
// CHECK-LABEL: @rows_of_the_product
// CHECK:       kernel.extern
// CHECK:       kernel.fused {{.*}}refused = {{\[\[}}0, "it needs whole rows of the product"]]
func.func @rows_of_the_product(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %s = prim.reduce %d {kind = "max", dims = [1]} : tensor<64xf32>
  func.return %s : tensor<64xf32>
}

// Nor random numbers.
// CHECK-LABEL: @random_factor
// CHECK:       kernel.fused
// CHECK:       kernel.extern
func.func @random_factor(%key: tensor<i64>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %r = prim.rng %key {kind = "uniform", shape = [64, 64], offset = 0, dtype = "f32"} : tensor<64x64xf32>
  %d = prim.dot %r, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}

// Rows that nobody knows the number of may be one: the library's.
// CHECK-LABEL: @unknown_rows
// CHECK:       kernel.extern
func.func @unknown_rows(%x: tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>, %w: tensor<64x64xf32>)
    -> tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>> {
  %m = prim.neg %x : tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>
  %d = prim.dot %m, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>
  func.return %d : tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>
}

// Unknown terms are only more or fewer steps.
// CHECK-LABEL: @unknown_terms
// CHECK-NEXT:  kernel.contract %{{.*}} {sizes = [64, 64, <"s0">], classes = ["m", "n", "k"], symbols = ["s0"]
func.func @unknown_terms(%x: tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>, %g: tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>) -> tensor<64x64xf32> {
  %m = prim.neg %x : tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>
  %d = prim.dot %m, %g {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}
