// RUN: isthmus-opt %s -p schedule-gpu -t ptx{arch=sm_90a} | filecheck %s
// RUN: isthmus-opt %s -p schedule-gpu -t ptx{arch=sm_80} | filecheck %s --check-prefix WARPS

// One thread has boxes of both factors copied in, two warpgroups multiply 64 rows each, four times 16 terms a stage, and
// have a finished tile copied out.
// CHECK-LABEL: .visible .entry kernel_
// CHECK:       .param .align 64 .b8 {{.*}}[128]
// CHECK:       .maxntid 384
// CHECK:       mbarrier.init
// CHECK:       fence.mbarrier_init
// CHECK:       setmaxnreg.dec.sync.aligned.u32 40;
// CHECK-COUNT-2: cp.async.bulk.tensor.2d.shared::cluster.global
// CHECK:       setmaxnreg.inc.sync.aligned.u32 232;
// CHECK:       mbarrier.try_wait.parity
// CHECK:       wgmma.fence.sync.aligned;
// CHECK-COUNT-4: wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16
// CHECK:       wgmma.commit_group.sync.aligned;
// CHECK:       wgmma.wait_group.sync.aligned 1;
// CHECK:       wgmma.wait_group.sync.aligned 0;
// CHECK-COUNT-16: stmatrix
// CHECK:       fence.proxy.async.shared::cta;
// CHECK-COUNT-4: cp.async.bulk.tensor.2d.global.shared::cta
// CHECK:       ret;

// Without such instructions each warp reads fragments and multiplies those.
// WARPS-LABEL: .visible .entry kernel_
// WARPS:       .maxntid 256
// WARPS:       cp.async.cg.shared.global {{.*}}, 16;
// WARPS:       ldmatrix.sync.aligned.m8n8.x4.shared.b16
// WARPS:       mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
// WARPS-NOT:   wgmma
// WARPS:       cp.async.wait_group 1;
// WARPS-NEXT:  bar.sync 0;
// WARPS:       ret;
func.func @plain(%x: tensor<4096x4096xbf16>, %w: tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16> {
  %y = kernel.contract %x, %w {sizes = [4096, 4096, 4096], classes = ["m", "n", "k"]} ({
    %a = kernel.load {operand = 0, map = [d0, d2]} : bf16
    %b = kernel.load {operand = 1, map = [d1, d2]} : bf16
    %d = kernel.dot %a, %b {dims = [2]} : bf16
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<4096x4096xbf16>
  func.return %y : tensor<4096x4096xbf16>
}

// Factors that lie along their own dims are read as they are, in boxes of 64 by 64; a batch is a dim of the boxes.
// CHECK-LABEL: .visible .entry kernel_
// CHECK:       cp.async.bulk.tensor.3d.shared::cluster.global
// CHECK:       wgmma.mma_async.sync.aligned.m64n{{.*}}k16.f32.f16.f16 {{.*}}, 1, 1, 1, 1, 1;
// CHECK:       ret;
// WARPS-LABEL: .visible .entry kernel_
// WARPS:       ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
// WARPS:       mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
// WARPS:       ret;
func.func @turned(%x: tensor<6x512x256xf16>, %w: tensor<6x512x128xf16>) -> tensor<6x256x128xf16> {
  %y = kernel.contract %x, %w {sizes = [6, 256, 128, 512], classes = ["batch", "m", "n", "k"]} ({
    %a = kernel.load {operand = 0, map = [d0, d3, d1]} : f16
    %b = kernel.load {operand = 1, map = [d0, d3, d2]} : f16
    %d = kernel.dot %a, %b {dims = [3]} : f16
    kernel.store %d {result = 0, map = [d0, d1, d2]}
  }) : tensor<6x256x128xf16>
  func.return %y : tensor<6x256x128xf16>
}
