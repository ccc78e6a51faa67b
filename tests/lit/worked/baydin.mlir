// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: A1

// ln x + x·y - sin y: both paths into each argument are added.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %log = prim.log %x : tensor<f32>
// PRIM-NEXT: %mul = prim.mul %x, %y : tensor<f32>
// PRIM-NEXT: %add = prim.add %log, %mul : tensor<f32>
// PRIM-NEXT: %sin = prim.sin %y : tensor<f32>
// PRIM-NEXT: %sub = prim.sub %add, %sin : tensor<f32>
// PRIM-NEXT: func.return %sub : tensor<f32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %log = prim.log %x : tensor<f32>
// JOINT-NEXT: %mul = prim.mul %x, %y : tensor<f32>
// JOINT-NEXT: %add = prim.add %log, %mul : tensor<f32>
// JOINT-NEXT: %sin = prim.sin %y : tensor<f32>
// JOINT-NEXT: %sub = prim.sub %add, %sin : tensor<f32>
// JOINT-NEXT: %neg = prim.neg %tangent : tensor<f32>
// JOINT-NEXT: %cos = prim.cos %y : tensor<f32>
// JOINT-NEXT: %mul_1 = prim.mul %neg, %cos : tensor<f32>
// JOINT-NEXT: %mul_2 = prim.mul %tangent, %y : tensor<f32>
// JOINT-NEXT: %mul_3 = prim.mul %tangent, %x : tensor<f32>
// JOINT-NEXT: %div = prim.div %tangent, %x : tensor<f32>
// JOINT-NEXT: %add_1 = prim.add %mul_1, %mul_3 : tensor<f32>
// JOINT-NEXT: %add_2 = prim.add %mul_2, %div : tensor<f32>
// JOINT-NEXT: func.return %sub, %add_2, %add_1 : tensor<f32>, tensor<f32>, tensor<f32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %log = prim.log %x : tensor<f32>
// CUT-NEXT: %mul = prim.mul %x, %y : tensor<f32>
// CUT-NEXT: %add = prim.add %log, %mul : tensor<f32>
// CUT-NEXT: %sin = prim.sin %y : tensor<f32>
// CUT-NEXT: %sub = prim.sub %add, %sin : tensor<f32>
// CUT-NEXT: func.return %sub, %x, %y : tensor<f32>, tensor<f32>, tensor<f32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %neg = prim.neg %tangent : tensor<f32>
// CUT-NEXT: %cos = prim.cos %y : tensor<f32>
// CUT-NEXT: %mul = prim.mul %neg, %cos : tensor<f32>
// CUT-NEXT: %mul_1 = prim.mul %tangent, %y : tensor<f32>
// CUT-NEXT: %mul_2 = prim.mul %tangent, %x : tensor<f32>
// CUT-NEXT: %div = prim.div %tangent, %x : tensor<f32>
// CUT-NEXT: %add = prim.add %mul, %mul_2 : tensor<f32>
// CUT-NEXT: %add_1 = prim.add %mul_1, %div : tensor<f32>
// CUT-NEXT: func.return %add_1, %add : tensor<f32>, tensor<f32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %y, %x {sizes = [], classes = [], partitions = 1, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = []} : f32
// KERNEL-NEXT: %sin = prim.sin %load : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = []} : f32
// KERNEL-NEXT: %mul = prim.mul %load_1, %load : f32
// KERNEL-NEXT: %log = prim.log %load_1 : f32
// KERNEL-NEXT: %add = prim.add %log, %mul : f32
// KERNEL-NEXT: %sub = prim.sub %add, %sin : f32
// KERNEL-NEXT: kernel.store %sub {result = 0, map = []}
// KERNEL-NEXT: }) : tensor<f32>
// KERNEL-NEXT: func.return %fused, %x, %y : tensor<f32>, tensor<f32>, tensor<f32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused, %fused_1 = kernel.fused %x, %tangent, %y {sizes = [], classes = [], partitions = 1, places = {{\[\[}}"output", 1], ["output", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = []} : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = []} : f32
// KERNEL-NEXT: %mul = prim.mul %load_1, %load : f32
// KERNEL-NEXT: %load_2 = kernel.load {operand = 2, map = []} : f32
// KERNEL-NEXT: %cos = prim.cos %load_2 : f32
// KERNEL-NEXT: %neg = prim.neg %load_1 : f32
// KERNEL-NEXT: %mul_1 = prim.mul %neg, %cos : f32
// KERNEL-NEXT: %add = prim.add %mul_1, %mul : f32
// KERNEL-NEXT: %div = prim.div %load_1, %load : f32
// KERNEL-NEXT: %mul_2 = prim.mul %load_1, %load_2 : f32
// KERNEL-NEXT: %add_1 = prim.add %mul_2, %div : f32
// KERNEL-NEXT: kernel.store %add {result = 0, map = []}
// KERNEL-NEXT: kernel.store %add_1 {result = 1, map = []}
// KERNEL-NEXT: }) : tensor<f32>, tensor<f32>
// KERNEL-NEXT: func.return %fused_1, %fused : tensor<f32>, tensor<f32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", "log(Tensor self) -> Tensor", "mul.Tensor(Tensor self, Tensor other) -> Tensor", "sin(Tensor self) -> Tensor", "sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"]>} {
  func.func @main(%x: !aten.ref<f32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "x"}, %y: !aten.ref<f32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "y"}) -> (!aten.ref<f32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %log = aten.call %x {overload = "log.default", args = [arg0]} : !aten.ref<f32>
    %mul = aten.call %x, %y {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<f32>
    %add = aten.call %log, %mul {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<f32>
    %sin = aten.call %y {overload = "sin.default", args = [arg0]} : !aten.ref<f32>
    %sub = aten.call %add, %sin {overload = "sub.Tensor", args = [arg0, arg1, 1]} : !aten.ref<f32>
    func.return %sub : !aten.ref<f32>
  }
}
