// RUN: isthmus-opt %s -t llvm | filecheck %s

// Twelve sums and a broadcast element of A: shared by every contraction with such tiles.
// CHECK-LABEL: define void @contract_block_float_6x2x8(
// CHECK:       load float, ptr
// CHECK:       call <8 x float> @llvm.fma.v8f32
// CHECK:       ret void

// So is packing a factor as it lies: rows of B are copied into panels, whole vectors side by side.
// CHECK-LABEL: define void @contract_copy_float_16x8(
// CHECK:       load <8 x float>
// CHECK-NOT:   shufflevector
// CHECK:       ret void

// Rows of A run along k: squares are turned in registers on the way into panels, the prologue is applied before.
// CHECK-LABEL: define internal void @kernel_{{.*}}_a(
// CHECK:       call <8 x float> @llvm.fabs.v8f32
// CHECK:       shufflevector <8 x float> %{{.*}}, <8 x float> %{{.*}}, <8 x i32>
// CHECK:       ret void

// The epilogue takes finished rows, a whole vector and a rest at a time.
// CHECK-LABEL: define internal void @kernel_{{.*}}_end(
// CHECK:       fneg <16 x float>
// CHECK:       ret void

// CHECK-LABEL: define void @kernel_
// CHECK:       call ptr @isthmus_workspace(i64
// CHECK:       call void @contract_copy_float_16x8(
// CHECK:       call void @kernel_{{.*}}_a(
// CHECK:       call void @contract_block_float_6x2x8(
// CHECK:       call void @kernel_{{.*}}_end(
// CHECK:       call void @isthmus_leave(
func.func @around(%a: tensor<12x32xf32>, %b: tensor<32x16xf32>) -> tensor<12x16xf32> {
  %y = kernel.contract %a, %b {sizes = [12, 16, 32], classes = ["m", "n", "k"], partitions = 1, grid = [1, 1, 1],
      tile = [6, 2, 8], block = [12, 32, 16]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : f32
    %p = prim.abs %v : f32
    %w = kernel.load {operand = 1, map = [d2, d1]} : f32
    %d = kernel.dot %p, %w {dims = [2]} : f32
    %n = prim.neg %d : f32
    kernel.store %n {result = 0, map = [d0, d1]}
  }) : tensor<12x16xf32>
  func.return %y : tensor<12x16xf32>
}
