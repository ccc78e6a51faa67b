// RUN: isthmus-opt %s -p fuse | filecheck %s
// ROW: I6
// ROW: I9

// Pairs that must stay apart; the second kernel says which launch it could not join, and why.

// CHECK-LABEL: @a_library_call_lies_between
// CHECK:       kernel.fused
// CHECK:       kernel.extern
// CHECK:       kernel.fused %{{.*}} {{{.*}}refused = {{\[\[}}0, "another step lies between them"]]}
func.func @a_library_call_lies_between(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %e = prim.exp %x : tensor<64x64xf32>
  %d = prim.dot %e, %e {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %s = prim.add %d, %e : tensor<64x64xf32>
  func.return %s : tensor<64x64xf32>
}

// CHECK-LABEL: @reductions_leave_different_dims
// CHECK:       kernel.fused
// CHECK:       kernel.fused %{{.*}} {{{.*}}refused = {{\[\[}}0, "its reductions leave different dims"]]}
func.func @reductions_leave_different_dims(%x: tensor<64x32x16xf32>) -> (tensor<64xf32>, tensor<64x32xf32>) {
  %a = prim.reduce %x {kind = "max", dims = [1, 2]} : tensor<64xf32>
  %b = prim.reduce %x {kind = "max", dims = [2]} : tensor<64x32xf32>
  func.return %a, %b : tensor<64xf32>, tensor<64x32xf32>
}

// CHECK-LABEL: @a_reduction_read_elsewhere
// CHECK:       kernel.fused
// CHECK:       kernel.fused %{{.*}} {{{.*}}refused = {{\[\[}}0, "{{.*}} is wanted at an index other than the one at which it is reduced"]]}
func.func @a_reduction_read_elsewhere(%x: tensor<64x32xf32>) -> tensor<64xf32> {
  %a = prim.reduce %x {kind = "max", dims = [1]} : tensor<64xf32>
  %r = prim.reverse %a {dims = [0]} : tensor<64xf32>
  %s = prim.add %a, %r : tensor<64xf32>
  func.return %s : tensor<64xf32>
}

// CHECK-LABEL: @a_scatter_starts_from_what_is_complete
// CHECK:       kernel.fused
// CHECK:       kernel.fused %{{.*}} {{{.*}}initial = [{{.}}], refused = {{\[\[}}0, "a scatter starts from a complete value"]]}
func.func @a_scatter_starts_from_what_is_complete(%x: tensor<64x32xf32>, %i: tensor<7xi64>) -> tensor<64x32xf32> {
  %e = prim.exp %x : tensor<64x32xf32>
  %g = prim.slice %e {dim = 0, start = 0, limit = 7, stride = 1} : tensor<7x32xf32>
  %s = prim.scatter %e, %g, %i {dims = [0], kind = "add"} : tensor<64x32xf32>
  func.return %s : tensor<64x32xf32>
}

// Different numbers of elements that share nothing: no reason to try.
// CHECK-LABEL: @nothing_shared
// CHECK:       kernel.fused %{{.*}} {sizes = [64], classes = ["parallel"]} ({
// CHECK:       kernel.fused %{{.*}} {sizes = [32], classes = ["parallel"]} ({
func.func @nothing_shared(%x: tensor<64xf32>, %y: tensor<32xf32>) -> (tensor<64xf32>, tensor<32xf32>) {
  %a = prim.exp %x : tensor<64xf32>
  %b = prim.exp %y : tensor<32xf32>
  func.return %a, %b : tensor<64xf32>, tensor<32xf32>
}

// Equal inputs, but walks that no common space has: the second takes every other element.
// CHECK-LABEL: @other_sizes
// CHECK:       kernel.fused
// CHECK:       kernel.fused %{{.*}} {{{.*}}refused = {{\[\[}}0, "a value would be made more than once along a row"]]}
func.func @other_sizes(%x: tensor<64xf32>) -> (tensor<64xf32>, tensor<32xf32>) {
  %a = prim.exp %x : tensor<64xf32>
  %v = prim.slice %x {dim = 0, start = 0, limit = 64, stride = 2} : tensor<32xf32>
  %b = prim.exp %v : tensor<32xf32>
  func.return %a, %b : tensor<64xf32>, tensor<32xf32>
}

// A row is walked one way at a time.
// CHECK-LABEL: @there_and_back
// CHECK:       kernel.cumulative {{.*}}reverse = false
// CHECK:       kernel.fused %{{.*}} {{{.*}}refused = {{\[\[}}0, "one walks the row forwards, the other backwards"]]}
func.func @there_and_back(%x: tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %a = prim.cumulative %x {kind = "add", dim = 1, reverse = false} : tensor<4x64xf32>
  %b = prim.cumulative %x {kind = "add", dim = 1, reverse = true} : tensor<4x64xf32>
  func.return %a, %b : tensor<4x64xf32>, tensor<4x64xf32>
}
