// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: D8

// a branch on data, the way on where the sum is negative: x·(-b).

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %const = prim.const {value = -1.0} : tensor<10xf32>
// PRIM-NEXT: %mul = prim.mul %b, %const : tensor<10xf32>
// PRIM-NEXT: %mul_1 = prim.mul %x, %mul : tensor<10xf32>
// PRIM-NEXT: func.return %mul_1 : tensor<10xf32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %const = prim.const {value = -1.0} : tensor<10xf32>
// JOINT-NEXT: %mul = prim.mul %b, %const : tensor<10xf32>
// JOINT-NEXT: %mul_1 = prim.mul %x, %mul : tensor<10xf32>
// JOINT-NEXT: %mul_2 = prim.mul %tangent, %mul : tensor<10xf32>
// JOINT-NEXT: %mul_3 = prim.mul %tangent, %x : tensor<10xf32>
// JOINT-NEXT: %mul_4 = prim.mul %mul_3, %const : tensor<10xf32>
// JOINT-NEXT: func.return %mul_1, %mul_4, %mul_2 : tensor<10xf32>, tensor<10xf32>, tensor<10xf32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %const = prim.const {value = -1.0} : tensor<10xf32>
// CUT-NEXT: %mul = prim.mul %b, %const : tensor<10xf32>
// CUT-NEXT: %mul_1 = prim.mul %x, %mul : tensor<10xf32>
// CUT-NEXT: func.return %mul_1, %b, %x : tensor<10xf32>, tensor<10xf32>, tensor<10xf32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %const = prim.const {value = -1.0} : tensor<10xf32>
// CUT-NEXT: %mul = prim.mul %b, %const : tensor<10xf32>
// CUT-NEXT: %mul_1 = prim.mul %tangent, %mul : tensor<10xf32>
// CUT-NEXT: %mul_2 = prim.mul %tangent, %x : tensor<10xf32>
// CUT-NEXT: %mul_3 = prim.mul %mul_2, %const : tensor<10xf32>
// CUT-NEXT: func.return %mul_3, %mul_1 : tensor<10xf32>, tensor<10xf32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %b, %x {sizes = [10], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = -1.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %mul = prim.mul %load, %const : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = [d0]} : f32
// KERNEL-NEXT: %mul_1 = prim.mul %load_1, %mul : f32
// KERNEL-NEXT: kernel.store %mul_1 {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<10xf32>
// KERNEL-NEXT: func.return %fused, %b, %x : tensor<10xf32>, tensor<10xf32>, tensor<10xf32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused, %fused_1 = kernel.fused %b, %tangent, %x {sizes = [10], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 1], ["output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = -1.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %mul = prim.mul %load, %const : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = [d0]} : f32
// KERNEL-NEXT: %mul_1 = prim.mul %load_1, %mul : f32
// KERNEL-NEXT: %load_2 = kernel.load {operand = 2, map = [d0]} : f32
// KERNEL-NEXT: %mul_2 = prim.mul %load_1, %load_2 : f32
// KERNEL-NEXT: %mul_3 = prim.mul %mul_2, %const : f32
// KERNEL-NEXT: kernel.store %mul_1 {result = 0, map = [d0]}
// KERNEL-NEXT: kernel.store %mul_3 {result = 1, map = [d0]}
// KERNEL-NEXT: }) : tensor<10xf32>, tensor<10xf32>
// KERNEL-NEXT: func.return %fused_1, %fused : tensor<10xf32>, tensor<10xf32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["mul.Tensor(Tensor self, Tensor other) -> Tensor"]>} {
  func.func @main(%b: !aten.ref<10xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "b"}, %x: !aten.ref<10xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "x"}) -> (!aten.ref<10xf32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %mul = aten.call %b {overload = "mul.Tensor", args = [arg0, -1]} : !aten.ref<10xf32>
    %mul_1 = aten.call %x, %mul {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<10xf32>
    func.return %mul_1 : !aten.ref<10xf32>
  }
}
