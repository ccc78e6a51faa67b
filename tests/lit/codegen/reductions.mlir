// RUN: isthmus-opt %s -t llvm | filecheck %s

// A row sum: four accumulators and their totals, copies a vector apart, then (a0 + a1) + (a2 + a3), then the lanes by halves.
// CHECK-LABEL: define void @kernel_
// CHECK-COUNT-8: alloca <8 x float>, align 64
// CHECK:       add i64 %{{.*}}, 8
// CHECK:       add i64 %{{.*}}, 16
// CHECK:       add i64 %{{.*}}, 24
// CHECK:       add nsw i64 %{{.*}}, 32
// CHECK:       shufflevector <8 x float> %{{.*}}, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
// CHECK:       fadd <4 x float>
// CHECK:       fadd <2 x float>
// CHECK:       extractelement <2 x float> %{{.*}}, i64 1
// CHECK:       fadd float
// CHECK-NEXT:  getelementptr float
// CHECK-NEXT:  store float
// CHECK-NOT:   reassoc
// CHECK:       ret void
func.func @row_sum(%x: tensor<4x64xf32>) -> tensor<4xf32> {
  %y = kernel.fused %x {sizes = [4, 64], classes = ["parallel", "row"], partitions = 1, vector = 1, width = 8, unroll = 4} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %s = kernel.reduce %v {kind = "add", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// Lanes that do not exist take the identity of the reduction, whatever their memory would hold.
// CHECK-LABEL: define void @kernel_
// CHECK:       select <8 x i1> <i1 1, i1 1, i1 0, {{.*}}>, <8 x float> %{{.*}}, <8 x float> splat (float 0xFFF0000000000000)
func.func @row_max(%x: tensor<4x2xf32>) -> tensor<4xf32> {
  %y = kernel.fused %x {sizes = [4, 2], classes = ["parallel", "row"], partitions = 1, vector = 1, width = 8} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %s = kernel.reduce %v {kind = "max", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// Lanes along the points: a reduction keeps its lanes, and the row is walked one position at a time.
// CHECK-LABEL: define void @kernel_
// CHECK-NOT:   shufflevector
// CHECK:       store <8 x float> %{{.*}}, ptr %{{.*}}, align 4
// CHECK-NOT:   shufflevector
// CHECK:       ret void
func.func @columns(%x: tensor<64x16xf32>) -> tensor<16xf32> {
  %y = kernel.fused %x {sizes = [16, 64], classes = ["parallel", "row"], partitions = 1, vector = 0, width = 8} ({
    %v = kernel.load {operand = 0, map = [d1, d0]} : f32
    %s = kernel.reduce %v {kind = "add", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<16xf32>
  func.return %y : tensor<16xf32>
}

// Each partition fills its own entry with the identity, then adds its rows to it.
// CHECK-LABEL: define void @kernel_
// CHECK:       mul i64 %{{.*}}, 16
// CHECK:       store float 0x0000000000000000, ptr
// CHECK:       fadd <8 x float>
func.func @accumulate(%x: tensor<64x16xf32>) -> tensor<4x16xf32> {
  %y = kernel.fused %x {sizes = [64, 16], classes = ["parallel", "row"], partitions = 4, vector = 1, width = 8} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.accumulate %v {result = 0, kind = "add", map = [d1]}
  }) : tensor<4x16xf32>
  func.return %y : tensor<4x16xf32>
}
