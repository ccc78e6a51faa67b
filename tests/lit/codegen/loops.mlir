// RUN: isthmus-opt %s -t llvm | filecheck %s

// Points along one dim: whole vectors, then the rest under a constant mask; nothing else is emitted.
// CHECK-LABEL: define void @kernel_
// CHECK:       %[[P:.*]] = load ptr, ptr %buffers, align 8
// CHECK:       load <8 x float>, ptr %{{.*}}, align 4
// CHECK:       fadd <8 x float>
// CHECK:       store <8 x float>
// CHECK:       icmp slt i64 %{{.*}}, 24
// CHECK:       @llvm.masked.load.v8f32.p0({{.*}}<i1 1, i1 1, i1 1, i1 0, i1 0, i1 0, i1 0, i1 0>
// CHECK:       @llvm.masked.store.v8f32.p0(
// CHECK-NOT:   load <8 x float>
func.func @pointwise(%x: tensor<27xf32>, %s: tensor<f32>) -> tensor<27xf32> {
  %y = kernel.fused %x, %s {sizes = [27], classes = ["parallel"], partitions = 1, vector = 0, width = 8} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %u = kernel.load {operand = 1, map = []} : f32
    %a = prim.add %v, %u : f32
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<27xf32>
  func.return %y : tensor<27xf32>
}

// Partition p of 10 points and 4 partitions is [10p/4, 10(p+1)/4); without a vector dim the code is scalar.
// CHECK-LABEL: define void @kernel_
// CHECK:       mul i64 %{{.*}}, 10
// CHECK-NEXT:  udiv i64 %{{.*}}, 4
// CHECK-NOT:   <8 x
// CHECK:       ret void
func.func @scalar(%x: tensor<10xf32>) -> tensor<10xf32> {
  %y = kernel.fused %x {sizes = [10], classes = ["parallel"], partitions = 4} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.neg %v : f32
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<10xf32>
  func.return %y : tensor<10xf32>
}

// Symbolic sizes come from the second argument, in the order of `symbols`; the mask is computed.
// CHECK-LABEL: define void @kernel_
// CHECK:       %[[A:.*]] = getelementptr i64, ptr %sizes, i64 1
// CHECK:       load i64, ptr %[[A]], align 8
// CHECK:       icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
func.func @symbolic(%x: tensor<?xf32, #isthmus.lit<[<"n">]>>) -> tensor<?xf32, #isthmus.lit<[<"n">]>> {
  %y = kernel.fused %x {sizes = [<"n">], classes = ["parallel"], symbols = ["m", "n"], partitions = 1, vector = 0, width = 8} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.neg %v : f32
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"n">]>>
  func.return %y : tensor<?xf32, #isthmus.lit<[<"n">]>>
}
