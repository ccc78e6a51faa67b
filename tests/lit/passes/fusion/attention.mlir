// RUN: isthmus-opt %s -p 'select-library,decompose{to=elementary},simplify,fuse,schedule{tile_bits=256},plan-memory' | filecheck %s

// One kernel on the operands as they lie, its output in the order of the queries: nothing is copied around it.
// CHECK-LABEL: @packed
// CHECK:       %[[O:.*]], %{{.*}} = kernel.attention %x, %x, %x {scale = 0.25, causal = true,
// CHECK-SAME:    views = {{\[\[\[2, 4, 60, 16\], \[11520, 16, 192, 1\], 0\], \[\[2, 4, 60, 16\], \[11520, 16, 192, 1\], 64\]}}
// CHECK-SAME:    layouts = {{\[\[3840, 16, 64, 1\], none\]}}
// CHECK-SAME:    tile = [6, 2, 8], block = [96, 96], partitions = 8, symbols = []
// CHECK-NOT:   kernel.fused
// CHECK:       func.return
func.func @packed(%x: tensor<2x60x192xf32>, %w: tensor<64x64xf32>) -> tensor<2x60x64xf32> {
  %y = prim.reshape %x : tensor<2x60x3x4x16xf32>
  %t = prim.transpose %y {perm = [2, 0, 3, 1, 4]} : tensor<3x2x4x60x16xf32>
  %a = prim.slice %t {dim = 0, start = 0, limit = 1, stride = 1} : tensor<1x2x4x60x16xf32>
  %b = prim.slice %t {dim = 0, start = 1, limit = 2, stride = 1} : tensor<1x2x4x60x16xf32>
  %c = prim.slice %t {dim = 0, start = 2, limit = 3, stride = 1} : tensor<1x2x4x60x16xf32>
  %q = prim.reshape %a : tensor<2x4x60x16xf32>
  %k = prim.reshape %b : tensor<2x4x60x16xf32>
  %v = prim.reshape %c : tensor<2x4x60x16xf32>
  %o, %l = prim.attention %q, %k, %v {scale = 0.25, causal = true} : tensor<2x4x60x16xf32>, tensor<2x4x60xf32>
  %m = prim.transpose %o {perm = [0, 2, 1, 3]} : tensor<2x60x4x16xf32>
  %r = prim.reshape %m : tensor<2x60x64xf32>
  %z = prim.dot %r, %w {batch_a = [], batch_b = [], contract_a = [2], contract_b = [1]} : tensor<2x60x64xf32>
  func.return %z : tensor<2x60x64xf32>
}

// A mask of one row is read as a row; heads that are shared stay few.
// CHECK-LABEL: @masked
// CHECK:       kernel.attention %q, %k, %v, %m {{{.*}}views = [none, none, none, {{\[\[2, 8, 60, 60\], \[60, 0, 0, 1\], 0\]}}, none, none]
// CHECK-NOT:   kernel.fused
// CHECK:       func.return
func.func @masked(%q: tensor<2x8x60x16xf32>, %k: tensor<2x2x60x16xf32>, %v: tensor<2x2x60x16xf32>, %m: tensor<2x60xi1>)
    -> tensor<2x8x60x16xf32> {
  %b = prim.broadcast %m {dims = [0, 3]} : tensor<2x8x60x60xi1>
  %o, %l = prim.attention %q, %k, %v, %b {scale = 0.25, causal = false} : tensor<2x8x60x16xf32>, tensor<2x8x60xf32>
  func.return %o : tensor<2x8x60x16xf32>
}

// Half precision is computed in float32, a width that is not known yet by the library.
// CHECK-LABEL: @others
// CHECK:       %[[Q:.*]] = kernel.fused %q
// CHECK:       kernel.attention %[[Q]], %[[Q]], %[[Q]]
// CHECK:       kernel.fused %attention
// CHECK:       }) : tensor<2x2x60x16xbf16>
// CHECK:       kernel.extern {{.*}}symbol = "_scaled_dot_product_flash_attention_for_cpu.default"
// CHECK:       func.return
func.func @others(%q: tensor<2x2x60x16xbf16>, %x: tensor<2x2x60x?xf32, #isthmus.lit<[2, 2, 60, <"d">]>>)
    -> (tensor<2x2x60x16xbf16>, tensor<2x2x60x?xf32, #isthmus.lit<[2, 2, 60, <"d">]>>) {
  %o, %l = prim.attention %q, %q, %q {scale = 0.25, causal = false} : tensor<2x2x60x16xbf16>, tensor<2x2x60xf32>
  %y, %m = prim.attention %x, %x, %x {scale = 0.25, causal = false} : tensor<2x2x60x?xf32, #isthmus.lit<[2, 2, 60, <"d">]>>, tensor<2x2x60xf32>
  func.return %o, %y : tensor<2x2x60x16xbf16>, tensor<2x2x60x?xf32, #isthmus.lit<[2, 2, 60, <"d">]>>
}
