// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: T6, M2, I13, G6

// cos(cos x): one input kept, backward computes cos x again; each direction is one kernel.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %cos = prim.cos %x : tensor<4xf32>
// PRIM-NEXT: %cos_1 = prim.cos %cos : tensor<4xf32>
// PRIM-NEXT: func.return %cos_1 : tensor<4xf32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %cos = prim.cos %x : tensor<4xf32>
// JOINT-NEXT: %cos_1 = prim.cos %cos : tensor<4xf32>
// JOINT-NEXT: %sin = prim.sin %cos : tensor<4xf32>
// JOINT-NEXT: %neg = prim.neg %sin : tensor<4xf32>
// JOINT-NEXT: %mul = prim.mul %tangent, %neg : tensor<4xf32>
// JOINT-NEXT: %sin_1 = prim.sin %x : tensor<4xf32>
// JOINT-NEXT: %neg_1 = prim.neg %sin_1 : tensor<4xf32>
// JOINT-NEXT: %mul_1 = prim.mul %mul, %neg_1 : tensor<4xf32>
// JOINT-NEXT: func.return %cos_1, %mul_1 : tensor<4xf32>, tensor<4xf32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %cos = prim.cos %x : tensor<4xf32>
// CUT-NEXT: %cos_1 = prim.cos %cos : tensor<4xf32>
// CUT-NEXT: func.return %cos_1, %x : tensor<4xf32>, tensor<4xf32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %cos = prim.cos %x : tensor<4xf32>
// CUT-NEXT: %sin = prim.sin %cos : tensor<4xf32>
// CUT-NEXT: %neg = prim.neg %sin : tensor<4xf32>
// CUT-NEXT: %mul = prim.mul %tangent, %neg : tensor<4xf32>
// CUT-NEXT: %sin_1 = prim.sin %x : tensor<4xf32>
// CUT-NEXT: %neg_1 = prim.neg %sin_1 : tensor<4xf32>
// CUT-NEXT: %mul_1 = prim.mul %mul, %neg_1 : tensor<4xf32>
// CUT-NEXT: func.return %mul_1 : tensor<4xf32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %x {sizes = [4], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 1, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %cos = prim.cos %load : f32
// KERNEL-NEXT: %cos_1 = prim.cos %cos : f32
// KERNEL-NEXT: kernel.store %cos_1 {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<4xf32>
// KERNEL-NEXT: func.return %fused, %x : tensor<4xf32>, tensor<4xf32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused = kernel.fused %x, %tangent {sizes = [4], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 1, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %sin = prim.sin %load : f32
// KERNEL-NEXT: %neg = prim.neg %sin : f32
// KERNEL-NEXT: %cos = prim.cos %load : f32
// KERNEL-NEXT: %sin_1 = prim.sin %cos : f32
// KERNEL-NEXT: %neg_1 = prim.neg %sin_1 : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = [d0]} : f32
// KERNEL-NEXT: %mul = prim.mul %load_1, %neg_1 : f32
// KERNEL-NEXT: %mul_1 = prim.mul %mul, %neg : f32
// KERNEL-NEXT: kernel.store %mul_1 {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<4xf32>
// KERNEL-NEXT: func.return %fused : tensor<4xf32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["cos(Tensor self) -> Tensor"]>} {
  func.func @main(%x: !aten.ref<4xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "x"}) -> (!aten.ref<4xf32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %cos = aten.call %x {overload = "cos.default", args = [arg0]} : !aten.ref<4xf32>
    %cos_1 = aten.call %cos {overload = "cos.default", args = [arg0]} : !aten.ref<4xf32>
    func.return %cos_1 : !aten.ref<4xf32>
  }
}
