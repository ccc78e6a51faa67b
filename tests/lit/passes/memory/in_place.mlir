// RUN: isthmus-opt %s -p fuse,schedule,plan-memory | filecheck %s

// The new value of an argument is written over the old one where it is read at the same place only.
// CHECK-LABEL: @update
// CHECK:       places = {{\[\[}}"argument", 0]]
func.func @update(%w: tensor<64xf32>, %g: tensor<64xf32>) -> (tensor<64xf32> {isthmus.mutated = 0 : i64}) {
  %n = prim.sub %w, %g : tensor<64xf32>
  func.return %n : tensor<64xf32>
}

// Not where the kernel reads it in another order.
// CHECK-LABEL: @reversed
// CHECK:       places = {{\[\[}}"output", 0]]
func.func @reversed(%w: tensor<64xf32>) -> (tensor<64xf32> {isthmus.mutated = 0 : i64}) {
  %r = prim.reverse %w {dims = [0]} : tensor<64xf32>
  %n = prim.exp %r : tensor<64xf32>
  func.return %n : tensor<64xf32>
}

// Not where the old value is read afterwards.
// CHECK-LABEL: @read_afterwards
// CHECK:       kernel.fused {{.*}}places = {{\[\[}}"output", 0]]
// CHECK:       kernel.extern
func.func @read_afterwards(%w: tensor<8x8xf32>) -> (tensor<8x8xf32> {isthmus.mutated = 0 : i64}, tensor<8x8xf32> {autodiff.output}) {
  %n = prim.exp %w : tensor<8x8xf32>
  %d = prim.dot %w, %n {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x8xf32>
  func.return %n, %d : tensor<8x8xf32>, tensor<8x8xf32>
}

// Not where an argument with the same storage is read there.
// CHECK-LABEL: @shared_storage
// CHECK:       places = {{\[\[}}"output", 0]]
func.func @shared_storage(%w: tensor<64xf32>, %v: tensor<64xf32> {isthmus.shares = #isthmus.lit<[0]>}) -> (tensor<64xf32> {isthmus.mutated = 0 : i64}) {
  %n = prim.add %w, %v : tensor<64xf32>
  func.return %n : tensor<64xf32>
}

// Nor where one is read that shares it through a third.
// CHECK-LABEL: @shared_through_another
// CHECK:       places = {{\[\[}}"output", 0]]
func.func @shared_through_another(%w: tensor<64xf32>, %v: tensor<64xf32>, %u: tensor<64xf32> {isthmus.shares = #isthmus.lit<[0, 1]>}) -> (tensor<64xf32> {isthmus.mutated = 0 : i64}) {
  %n = prim.add %w, %v : tensor<64xf32>
  func.return %n : tensor<64xf32>
}

// A bias is written over by the sum that updates it: each point reads its own element once, before it writes.
// CHECK-LABEL: @bias
// CHECK:       classes = ["parallel", "row"]
// CHECK-SAME:  places = {{\[\[}}"argument", 0]]
func.func @bias(%b: tensor<64xf32>, %g: tensor<64x32xf32>) -> (tensor<64xf32> {isthmus.mutated = 0 : i64}) {
  %s = prim.reduce %g {kind = "add", dims = [1]} : tensor<64xf32>
  %n = prim.sub %b, %s : tensor<64xf32>
  func.return %n : tensor<64xf32>
}

// Not where the walk over the row reads it.
// CHECK-LABEL: @read_in_the_walk
// CHECK:       classes = ["parallel", "row"]
// CHECK-SAME:  places = {{\[\[}}"output", 0]]
func.func @read_in_the_walk(%b: tensor<64xf32>, %g: tensor<64x32xf32>) -> (tensor<64xf32> {isthmus.mutated = 0 : i64}) {
  %w = prim.broadcast %b {dims = [0]} : tensor<64x32xf32>
  %d = prim.sub %g, %w : tensor<64x32xf32>
  %e = prim.exp %d : tensor<64x32xf32>
  %s = prim.reduce %e {kind = "add", dims = [1]} : tensor<64xf32>
  func.return %s : tensor<64xf32>
}
