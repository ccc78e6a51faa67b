// RUN: isthmus-opt %s -t llvm | filecheck %s

// bf16 is widened when loaded and rounded to even by integer arithmetic, which keeps denormals.
// CHECK-LABEL: define void @kernel_
// CHECK:       load <8 x i16>, ptr %{{.*}}, align 2
// CHECK-NEXT:  zext <8 x i16> %{{.*}} to <8 x i32>
// CHECK-NEXT:  shl <8 x i32>
// CHECK-NEXT:  bitcast <8 x i32> %{{.*}} to <8 x float>
// CHECK:       fmul <8 x float>
// CHECK:       add <8 x i32> %{{.*}}, splat (i32 32767)
// CHECK:       store <8 x i16>
// CHECK-NOT:   fptrunc
// CHECK:       ret void
func.func @bf16(%x: tensor<8xbf16>) -> tensor<8xbf16> {
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"], partitions = 1, vector = 0, width = 8} ({
    %v = kernel.load {operand = 0, map = [d0]} : bf16
    %a = prim.mul %v, %v : bf16
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<8xbf16>
  func.return %y : tensor<8xbf16>
}

// A row that an index picks stays a vector load with a computed base; an index along the lanes is a gather.
// CHECK-LABEL: define void @kernel_
// CHECK:       icmp ult i64 %{{.*}}, 50
// CHECK:       store atomic i64 %{{.*}}, ptr %{{.*}} monotonic, align 8
// CHECK:       load <8 x float>
// CHECK:       @llvm.masked.gather.v8f32.v8p0(
func.func @gather(%x: tensor<50x8xf32>, %i: tensor<3xi64>, %j: tensor<8xi64>) -> tensor<3x8xf32> {
  %y = kernel.fused %x, %i, %j {sizes = [3, 8], classes = ["parallel", "row"], partitions = 1, vector = 1, width = 8} ({
    %n = kernel.load {operand = 1, map = [d0]} : i64
    %c = kernel.check %n {bound = 50, dim = 0} : i64
    %v = kernel.load %c {operand = 0, map = [v0, d1]} : f32
    %k = kernel.load {operand = 2, map = [d1]} : i64
    %w = kernel.load %k {operand = 0, map = [d0, v0]} : f32
    %a = prim.add %v, %w : f32
    kernel.store %a {result = 0, map = [d0, d1]}
  }) : tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// A predicate masks the load, and the default fills the lanes that memory was not read for.
// CHECK-LABEL: define void @kernel_
// CHECK:       %[[M:.*]] = icmp slt <8 x i64>
// CHECK:       @llvm.masked.load.v8f32.p0(ptr align 4 %{{.*}}, <8 x i1> %[[M]]
// CHECK-NEXT:  select <8 x i1> %[[M]]
func.func @pad(%x: tensor<5xf32>) -> tensor<8xf32> {
  %y = kernel.fused %x {sizes = [8], classes = ["parallel"], partitions = 1, vector = 0, width = 8} ({
    %k = kernel.index {map = [d0]} : i64
    %five = prim.const {value = 5} : i64
    %p = prim.cmp %k, %five {predicate = "lt"} : i1
    %v = kernel.load %p {operand = 0, map = [d0], default = 0.5} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}
