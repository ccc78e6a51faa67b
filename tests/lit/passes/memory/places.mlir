// RUN: isthmus-opt %s -p fuse,schedule,plan-memory | filecheck %s

// Temporaries that are not alive together share memory; results are the caller's.
// CHECK-LABEL: @chain
// CHECK-SAME:  isthmus.temporary_bytes = #isthmus.lit<32768>
// CHECK:       kernel.extern %{{.*}} places = {{\[\[}}"temporary", 0]]}
// CHECK:       kernel.extern %{{.*}} places = {{\[\[}}"temporary", 16384]]}
// CHECK:       kernel.extern %{{.*}} places = {{\[\[}}"temporary", 0]]}
// CHECK:       kernel.extern %{{.*}} places = {{\[\[}}"output", 0]]}
func.func @chain(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %a = prim.dot %x, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %b = prim.dot %a, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %c = prim.dot %b, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %d = prim.dot %c, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}

// What the backward needs lives in an arena of its own.
// CHECK-LABEL: @saved
// CHECK-SAME:  isthmus.saved_bytes = #isthmus.lit<256>
// CHECK:       places = {{\[\[}}"output", 0], ["saved", 0]]
func.func @saved(%x: tensor<64xf32>) -> (tensor<64xf32> {autodiff.output}, tensor<64xf32> {autodiff.saved = 0 : i64}) {
  %a = prim.exp %x : tensor<64xf32>
  %b = prim.tanh %x : tensor<64xf32>
  func.return %a, %b : tensor<64xf32>, tensor<64xf32>
}

// A scatter works in the buffer that it starts from, where nobody needs that any more.
// CHECK-LABEL: @scatter_takes_over
// CHECK:       kernel.fused {{.*}}places = {{\[\[}}"output", 0]]
// CHECK:       kernel.fused {{.*}}initial = {{.*}}places = {{\[\[}}"output", 0]]
func.func @scatter_takes_over(%u: tensor<7x32xf32>, %i: tensor<7xi64>) -> tensor<64x32xf32> {
  %z = prim.const {value = 0.0} : tensor<64x32xf32>
  %s = prim.scatter %z, %u, %i {dims = [0], kind = "add"} : tensor<64x32xf32>
  func.return %s : tensor<64x32xf32>
}

// Small values are kept without padding, the largest first.
// CHECK-LABEL: @small_saved
// CHECK-SAME:  isthmus.saved_bytes = #isthmus.lit<52>
// CHECK:       kernel.fused %x {{.*}}places = {{\[\[}}"saved", 40]]
// CHECK:       kernel.fused %z {{.*}}places = {{\[\[}}"saved", 0]]
func.func @small_saved(%x: tensor<3xf32>, %z: tensor<10xf32>) -> (tensor<3xf32> {autodiff.saved = 0 : i64}, tensor<10xf32> {autodiff.saved = 1 : i64}) {
  %a = prim.exp %x : tensor<3xf32>
  %b = prim.exp %z : tensor<10xf32>
  func.return %a, %b : tensor<3xf32>, tensor<10xf32>
}

// A kernel writes over an operand that nobody reads any more, where each point reads its own element alone.
// CHECK-LABEL: @takes_over
// CHECK-SAME:  isthmus.temporary_bytes = #isthmus.lit<16384>
// CHECK:       kernel.extern %{{.*}} places = {{\[\[}}"temporary", 0]]
// CHECK:       kernel.fused {{.*}} places = {{\[\[}}"temporary", 0]]
// CHECK:       kernel.extern %{{.*}} places = {{\[\[}}"output", 0]]
func.func @takes_over(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %a = prim.dot %x, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %e = prim.exp %a : tensor<64x64xf32>
  %d = prim.dot %e, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}

// Not where another element is read.
// CHECK-LABEL: @transposed
// CHECK-SAME:  isthmus.temporary_bytes = #isthmus.lit<32768>
func.func @transposed(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %a = prim.dot %x, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  %t = prim.transpose %a {perm = [1, 0]} : tensor<64x64xf32>
  %e = prim.add %a, %t : tensor<64x64xf32>
  %d = prim.dot %e, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d : tensor<64x64xf32>
}
