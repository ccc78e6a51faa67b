// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: T10, M6

// clamp_min(a, 0)·3: the comparison is made in forward and crosses as bools.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %const = prim.const {value = 0.0} : tensor<2xf32>
// PRIM-NEXT: %cmp = prim.cmp %a, %const {predicate = "lt"} : tensor<2xi1>
// PRIM-NEXT: %select = prim.select %cmp, %const, %a : tensor<2xf32>
// PRIM-NEXT: %const_1 = prim.const {value = 3.0} : tensor<2xf32>
// PRIM-NEXT: %mul = prim.mul %select, %const_1 : tensor<2xf32>
// PRIM-NEXT: func.return %mul : tensor<2xf32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %const = prim.const {value = 0.0} : tensor<2xf32>
// JOINT-NEXT: %cmp = prim.cmp %a, %const {predicate = "lt"} : tensor<2xi1>
// JOINT-NEXT: %select = prim.select %cmp, %const, %a : tensor<2xf32>
// JOINT-NEXT: %const_1 = prim.const {value = 3.0} : tensor<2xf32>
// JOINT-NEXT: %mul = prim.mul %select, %const_1 : tensor<2xf32>
// JOINT-NEXT: %mul_1 = prim.mul %tangent, %const_1 : tensor<2xf32>
// JOINT-NEXT: %select_1 = prim.select %cmp, %const, %mul_1 : tensor<2xf32>
// JOINT-NEXT: func.return %mul, %select_1 : tensor<2xf32>, tensor<2xf32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %const = prim.const {value = 0.0} : tensor<2xf32>
// CUT-NEXT: %cmp = prim.cmp %a, %const {predicate = "lt"} : tensor<2xi1>
// CUT-NEXT: %select = prim.select %cmp, %const, %a : tensor<2xf32>
// CUT-NEXT: %const_1 = prim.const {value = 3.0} : tensor<2xf32>
// CUT-NEXT: %mul = prim.mul %select, %const_1 : tensor<2xf32>
// CUT-NEXT: func.return %mul, %a : tensor<2xf32>, tensor<2xf32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %const = prim.const {value = 3.0} : tensor<2xf32>
// CUT-NEXT: %mul = prim.mul %tangent, %const : tensor<2xf32>
// CUT-NEXT: %const_1 = prim.const {value = 0.0} : tensor<2xf32>
// CUT-NEXT: %cmp = prim.cmp %a, %const_1 {predicate = "lt"} : tensor<2xi1>
// CUT-NEXT: %select = prim.select %cmp, %const_1, %mul : tensor<2xf32>
// CUT-NEXT: func.return %select : tensor<2xf32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %a {sizes = [2], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = 3.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %const_1 = prim.const {value = 0.0} : f32
// KERNEL-NEXT: %cmp = prim.cmp %load, %const_1 {predicate = "lt"} : i1
// KERNEL-NEXT: %select = prim.select %cmp, %const_1, %load : f32
// KERNEL-NEXT: %mul = prim.mul %select, %const : f32
// KERNEL-NEXT: kernel.store %mul {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<2xf32>
// KERNEL-NEXT: func.return %fused, %a : tensor<2xf32>, tensor<2xf32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused = kernel.fused %tangent, %a {sizes = [2], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = 3.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %mul = prim.mul %load, %const : f32
// KERNEL-NEXT: %const_1 = prim.const {value = 0.0} : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = [d0]} : f32
// KERNEL-NEXT: %cmp = prim.cmp %load_1, %const_1 {predicate = "lt"} : i1
// KERNEL-NEXT: %select = prim.select %cmp, %const_1, %mul : f32
// KERNEL-NEXT: kernel.store %select {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<2xf32>
// KERNEL-NEXT: func.return %fused : tensor<2xf32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["clamp_min(Tensor self, Scalar min) -> Tensor", "mul.Tensor(Tensor self, Tensor other) -> Tensor"]>} {
  func.func @main(%a: !aten.ref<2xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "a"}) -> (!aten.ref<2xf32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %clamp_min = aten.call %a {overload = "clamp_min.default", args = [arg0, 0]} : !aten.ref<2xf32>
    %mul = aten.call %clamp_min {overload = "mul.Tensor", args = [arg0, 3]} : !aten.ref<2xf32>
    func.return %mul : !aten.ref<2xf32>
  }
}
