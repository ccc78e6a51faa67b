// RUN: isthmus-opt %s -p 'fuse{contractions=auto}' | filecheck %s

// A large product is a kernel of ours even with nothing around it: it is no slower.
// CHECK-LABEL: @large_alone
// CHECK-NEXT:  kernel.contract
func.func @large_alone(%x: tensor<1024x256xf32>, %w: tensor<256x256xf32>) -> tensor<1024x256xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<1024x256xf32>
  func.return %d : tensor<1024x256xf32>
}

// A small one too, where rows of the one factor need no packing.
// CHECK-LABEL: @small_alone
// CHECK-NEXT:  kernel.contract
func.func @small_alone(%x: tensor<32x784xf32>, %w: tensor<784x128xf32>) -> tensor<32x128xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<32x128xf32>
  func.return %d : tensor<32x128xf32>
}

// Few rows are no tile.
// CHECK-LABEL: @few_rows_alone
// CHECK-NEXT:  kernel.extern
func.func @few_rows_alone(%x: tensor<4x784xf32>, %w: tensor<784x128xf32>) -> tensor<4x128xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x128xf32>
  func.return %d : tensor<4x128xf32>
}

// They do no harm where both factors run along the terms.
// CHECK-LABEL: @few_rows_along_terms
// CHECK-NEXT:  kernel.contract
func.func @few_rows_along_terms(%x: tensor<4x784xf32>, %w: tensor<10x784xf32>) -> tensor<4x10xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<4x10xf32>
  func.return %d : tensor<4x10xf32>
}

// Nor does what follows make a tile of few rows.
// CHECK-LABEL: @few_rows_and_little_after
// CHECK:       kernel.extern
// CHECK:       kernel.fused
func.func @few_rows_and_little_after(%x: tensor<7x64xf32>, %w: tensor<64x64xf32>) -> tensor<7x64xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<7x64xf32>
  %t = prim.abs %d : tensor<7x64xf32>
  func.return %t : tensor<7x64xf32>
}

// A long pass over the result is saved.
// CHECK-LABEL: @small_with_much_after
// CHECK-NEXT:  kernel.contract
func.func @small_with_much_after(%x: tensor<128x64xf32>, %w: tensor<64x512xf32>) -> tensor<128x512xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<128x512xf32>
  %t = prim.abs %d : tensor<128x512xf32>
  func.return %t : tensor<128x512xf32>
}

// Panels of rows begin anywhere in a head, so that they would be gathered: heads are put together before.
// CHECK-LABEL: @heads_along_rows
// CHECK:       kernel.fused
// CHECK:       refused = {{\[\[}}0, "neighbours of a factor lie apart in memory"]]
func.func @heads_along_rows(%x: tensor<2x64x48xf32>, %w: tensor<64x512xf32>) -> tensor<96x512xf32> {
  %t = prim.transpose %x {perm = [1, 0, 2]} : tensor<64x2x48xf32>
  %r = prim.reshape %t : tensor<64x96xf32>
  %n = prim.neg %r : tensor<64x96xf32>
  %d = prim.dot %n, %w {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<96x512xf32>
  func.return %d : tensor<96x512xf32>
}

// Along k they are vectors.
// CHECK-LABEL: @heads_along_terms
// CHECK-NEXT:  kernel.contract
// CHECK:       func.return
func.func @heads_along_terms(%x: tensor<2x1024x64xf32>, %w: tensor<128x512xf32>) -> tensor<1024x512xf32> {
  %t = prim.transpose %x {perm = [1, 0, 2]} : tensor<1024x2x64xf32>
  %r = prim.reshape %t : tensor<1024x128xf32>
  %n = prim.neg %r : tensor<1024x128xf32>
  %d = prim.dot %n, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<1024x512xf32>
  func.return %d : tensor<1024x512xf32>
}
