// RUN: isthmus-opt %s -p schedule-gpu -t ptx | filecheck %s

// A row of 512 is walked by one warp in four steps: it is read once, stays in registers, and needs no barrier.
// CHECK-LABEL: .visible .entry kernel_
// CHECK-COUNT-4: ld.global.nc.v4.b32
// CHECK-NOT:   bar.sync
// CHECK-NOT:   ld.global
// CHECK:       shfl.sync.bfly.b32 %{{.*}}, 16, 31, -1;
// CHECK:       shfl.sync.bfly.b32 %{{.*}}, 1, 31, -1;
// CHECK-NOT:   ld.global
// CHECK-COUNT-4: st.global.v4.b32
// CHECK:       ret;
func.func @warp(%x: tensor<64x512xf32>) -> tensor<64x512xf32> {
  %y = kernel.fused %x {sizes = [64, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %s = kernel.reduce %v {kind = "add", dims = [1]} : f32
    %d = prim.sub %v, %s : f32
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<64x512xf32>
  func.return %y : tensor<64x512xf32>
}

// A longer one is walked by a block; its warps meet once for both reductions of the walk.
// CHECK-LABEL: .visible .entry kernel_
// CHECK:       .maxntid 512
// CHECK:       .shared
// CHECK-COUNT-1: bar.sync
// CHECK-NOT:   bar.sync
// CHECK:       ret;
func.func @block(%x: tensor<64x8192xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %y, %z = kernel.fused %x {sizes = [64, 8192], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %s = kernel.reduce %v {kind = "add", dims = [1]} : f32
    %m = kernel.reduce %v {kind = "max", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
    kernel.store %m {result = 1, map = [d0]}
  }) : tensor<64xf32>, tensor<64xf32>
  func.return %y, %z : tensor<64xf32>, tensor<64xf32>
}

// A row too long for registers is copied to shared memory, 16 bytes at once.
// CHECK-LABEL: .visible .entry kernel_
// CHECK:       .minnctapersm 2
// CHECK:       cp.async.cg.shared.global
// CHECK:       cp.async.wait_all
// CHECK:       ld.shared.v4.b32
// CHECK:       bar.sync
// CHECK-NOT:   ld.global
// CHECK:       ld.shared.v4.b32
// CHECK:       st.global.v4.b32
// CHECK:       ret;
func.func @shared(%x: tensor<64x50304xbf16>) -> tensor<64x50304xbf16> {
  %y = kernel.fused %x {sizes = [64, 50304], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : bf16
    %s = kernel.reduce %v {kind = "add", dims = [1]} : bf16
    %d = prim.sub %v, %s : bf16
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<64x50304xbf16>
  func.return %y : tensor<64x50304xbf16>
}

// Each block sums the rows of its partition down the columns in registers, and writes once.
// CHECK-LABEL: .visible .entry kernel_
// CHECK:       ld.global.nc.v4.b32
// CHECK-COUNT-4: add.rn.f32
// CHECK-NOT:   st.global
// CHECK:       bra
// CHECK:       st.global.v4.b32
// CHECK:       ret;
func.func @columns(%x: tensor<4096x512xf32>) -> tensor<128x512xf32> {
  %y = kernel.fused %x {sizes = [4096, 512], classes = ["parallel", "row"], partitions = 128} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.accumulate %v {result = 0, kind = "add", map = [d1]}
  }) : tensor<128x512xf32>
  func.return %y : tensor<128x512xf32>
}
