// RUN: isthmus-opt %s -t llvm | filecheck %s

// Rows of A run along k: squares are turned in registers on the way into panels, the prologue is applied before.
// CHECK-LABEL: define internal void @kernel_{{.*}}_a(
// CHECK:       call <8 x float> @llvm.fabs.v8f32
// CHECK:       shufflevector <8 x float> %{{.*}}, <8 x float> %{{.*}}, <8 x i32>
// CHECK:       ret void

// Rows of B lie as panels want them, and there are only whole ones.
// CHECK-LABEL: define internal void @kernel_{{.*}}_b(
// CHECK-NOT:   masked
// CHECK:       ret void

// The epilogue takes finished rows, a whole vector and a rest at a time.
// CHECK-LABEL: define internal void @kernel_{{.*}}_end(
// CHECK:       fneg <16 x float>
// CHECK:       ret void

// Twelve sums and a broadcast element of A.
// CHECK-LABEL: define internal void @kernel_{{.*}}_tile(
// CHECK:       load float, ptr
// CHECK:       call <8 x float> @llvm.fma.v8f32
// CHECK:       ret void

// CHECK-LABEL: define void @kernel_
// CHECK:       call ptr @malloc(i64
// CHECK:       call void @kernel_{{.*}}_b(
// CHECK:       call void @kernel_{{.*}}_a(
// CHECK:       call void @kernel_{{.*}}_tile(
// CHECK:       call void @kernel_{{.*}}_end(
// CHECK:       call void @free(
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
