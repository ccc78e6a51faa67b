// RUN: isthmus-opt %s -t llvm | filecheck %s
// RUN: isthmus-opt %s -t asm{cpu=x86-64-v4} | filecheck %s --check-prefix=ASM

// Two kernels that differ in names and places only are emitted once.
// CHECK-COUNT-1: define void @kernel_
// CHECK-NOT:     define void @kernel_
// ASM:           vfmadd{{.*}} %zmm
// ASM-NOT:       (%rsp), %zmm
func.func @twins(%x: tensor<32xf32>) -> tensor<32xf32> {
  %y = kernel.fused %x {sizes = [32], classes = ["parallel"], partitions = 1, vector = 0, width = 16} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.fma %v, %v, %v : f32
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<32xf32>
  %z = kernel.fused %y {sizes = [32], classes = ["parallel"], partitions = 1, vector = 0, width = 16} ({
    %other = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.fma %other, %other, %other : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<32xf32>
  func.return %z : tensor<32xf32>
}
