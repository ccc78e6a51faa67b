// RUN: isthmus-opt %s -p schedule-gpu -t nvptx | filecheck %s
// RUN: isthmus-opt %s -p schedule-gpu -t ptx{arch=sm_90a} | filecheck %s --check-prefix=PTX

// A thread has 16 bytes of neighbours. The last block, which is not full, goes one by one.
// CHECK-LABEL: define ptx_kernel void @kernel_
// CHECK-SAME:  (ptr noalias readonly %b0, ptr noalias readonly %b1, ptr noalias %b2)
// CHECK-SAME:  "nvvm.maxntid"="128"
// CHECK:       icmp sle i64 %{{.*}}, 1003
// CHECK:       load <4 x float>, ptr %{{.*}}, align 16
// CHECK:       store <4 x float> %{{.*}}, align 16
// CHECK:       add nsw i64 %{{.*}}, 128
// PTX-LABEL:   .visible .entry kernel_
// PTX:         ld.global.nc.v4.b32
// PTX:         mul.rn.f32
// PTX:         add.rn.f32
// PTX:         st.global.v4.b32
func.func @neighbours(%x: tensor<1003xf32>, %s: tensor<f32>) -> tensor<1003xf32> {
  %y = kernel.fused %x, %s {sizes = [1003], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %u = kernel.load {operand = 1, map = []} : f32
    %m = prim.mul %v, %u : f32
    %a = prim.add %m, %u : f32
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<1003xf32>
  func.return %y : tensor<1003xf32>
}

// Sizes are parameters after the pointers. Rows of 6 elements are even, so two elements are read at once.
// CHECK-LABEL: define ptx_kernel void @kernel_
// CHECK-SAME:  (ptr noalias readonly %b0, ptr noalias readonly %b1, ptr noalias %b2, i64 %s0)
// CHECK:       load <2 x float>, ptr %{{.*}}, align 8
// PTX-LABEL:   .visible .entry kernel_
// PTX:         ld.global.nc.v2.b32
func.func @symbolic(%x: tensor<?x6xf32, #isthmus.lit<[<"n">, 6]>>, %b: tensor<6xf32>) -> tensor<?x6xf32, #isthmus.lit<[<"n">, 6]>> {
  %y = kernel.fused %x, %b {sizes = [<"n">, 6], classes = ["parallel", "parallel"], symbols = ["n"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %u = kernel.load {operand = 1, map = [d1]} : f32
    %a = prim.add %v, %u : f32
    kernel.store %a {result = 0, map = [d0, d1]}
  }) : tensor<?x6xf32, #isthmus.lit<[<"n">, 6]>>
  func.return %y : tensor<?x6xf32, #isthmus.lit<[<"n">, 6]>>
}
