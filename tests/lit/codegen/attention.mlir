// RUN: isthmus-opt %s -p 'schedule{tile_bits=256}' -t llvm | filecheck %s

// Products of packed blocks are functions, each with the triangle's bound; the kernel calls them block by block.
// CHECK:       define internal void @[[K:kernel_[0-9a-f]+]]_copy
// CHECK:       define internal void @[[K]]_turn
// CHECK:       define internal void @[[K]]_product
// CHECK:       call <8 x float> @llvm.fma.v8f32
// CHECK:       define internal void @[[K]]_product
// CHECK:       define void @[[K]](ptr %buffers, ptr %sizes, i64 %begin, i64 %end)
// CHECK:       call ptr @isthmus_workspace(
// CHECK:       call void @[[K]]_product
// CHECK:       call void @[[K]]_product
// CHECK:       call void @isthmus_leave(
func.func @causal(%q: tensor<2x4x64x32xf32>) -> (tensor<2x4x64x32xf32>, tensor<2x4x64xf32>) {
  %o, %l = kernel.attention %q, %q, %q {scale = 0.25, causal = true} : tensor<2x4x64x32xf32>, tensor<2x4x64xf32>
  func.return %o, %l : tensor<2x4x64x32xf32>, tensor<2x4x64xf32>
}
