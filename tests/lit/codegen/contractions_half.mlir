// RUN: isthmus-opt %s -t llvm | filecheck %s
// RUN: isthmus-opt %s -t 'llvm{cpu=znver4}' | filecheck %s --check-prefix=PAIRS

// Panels are f32: half precision is widened on the way in.
// CHECK-LABEL: define void @contract_turn_bf16_6x8(
// CHECK:       load <4 x i16>
// CHECK:       zext <4 x i16> {{.*}} to <4 x i32>
// CHECK:       store <8 x float>

// Sums are rounded once, before anything is computed of them.
// CHECK-LABEL: define internal void @kernel_{{.*}}_end(
// CHECK:       load <16 x float>
// CHECK:       lshr <16 x i32>
// CHECK:       store <16 x i16>

// A machine that multiplies pairs gets words of two steps.
// PAIRS-LABEL: define void @contract_block_float_6x2x16_pairs(
// PAIRS:       call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> {{.*}}, <32 x bfloat> {{.*}}, <32 x bfloat>
// PAIRS-LABEL: define void @kernel_
// PAIRS:       call void @contract_pair_32x16(
// PAIRS:       call void @contract_pair_6x16(
// PAIRS:       call void @contract_block_float_6x2x16_pairs(
func.func @plain(%a: tensor<12x32xbf16>, %b: tensor<32x32xbf16>) -> tensor<12x32xbf16> {
  %y = kernel.contract %a, %b {sizes = [12, 32, 32], classes = ["m", "n", "k"], partitions = 1, grid = [1, 1, 1],
      tile = [6, 2, 8], block = [12, 32, 32]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : bf16
    %w = kernel.load {operand = 1, map = [d2, d1]} : bf16
    %d = kernel.dot %v, %w {dims = [2]} : bf16
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<12x32xbf16>
  func.return %y : tensor<12x32xbf16>
}

func.func @wide(%a: tensor<12x32xbf16>, %b: tensor<32x32xbf16>) -> tensor<12x32xbf16> {
  %y = kernel.contract %a, %b {sizes = [12, 32, 32], classes = ["m", "n", "k"], partitions = 1, grid = [1, 1, 1],
      tile = [6, 2, 16], block = [12, 32, 32]} ({
    %v = kernel.load {operand = 0, map = [d0, d2]} : bf16
    %w = kernel.load {operand = 1, map = [d2, d1]} : bf16
    %d = kernel.dot %v, %w {dims = [2]} : bf16
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<12x32xbf16>
  func.return %y : tensor<12x32xbf16>
}
