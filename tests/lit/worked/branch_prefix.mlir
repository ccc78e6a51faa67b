// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: D8

// a branch on data, its first graph: x = a/(|a| + 1), and whether the sum of b is negative, which Python reads.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %abs = prim.abs %a : tensor<10xf32>
// PRIM-NEXT: %const = prim.const {value = 1.0} : tensor<10xf32>
// PRIM-NEXT: %add = prim.add %abs, %const : tensor<10xf32>
// PRIM-NEXT: %div = prim.div %a, %add : tensor<10xf32>
// PRIM-NEXT: %reduce = prim.reduce %b {kind = "add", dims = [0]} : tensor<f32>
// PRIM-NEXT: %const_1 = prim.const {value = 0.0} : tensor<f32>
// PRIM-NEXT: %cmp = prim.cmp %reduce, %const_1 {predicate = "lt"} : tensor<i1>
// PRIM-NEXT: func.return %div, %cmp : tensor<10xf32>, tensor<i1>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %abs = prim.abs %a : tensor<10xf32>
// JOINT-NEXT: %const = prim.const {value = 1.0} : tensor<10xf32>
// JOINT-NEXT: %add = prim.add %abs, %const : tensor<10xf32>
// JOINT-NEXT: %div = prim.div %a, %add : tensor<10xf32>
// JOINT-NEXT: %reduce = prim.reduce %b {kind = "add", dims = [0]} : tensor<f32>
// JOINT-NEXT: %const_1 = prim.const {value = 0.0} : tensor<f32>
// JOINT-NEXT: %cmp = prim.cmp %reduce, %const_1 {predicate = "lt"} : tensor<i1>
// JOINT-NEXT: %div_1 = prim.div %tangent, %add : tensor<10xf32>
// JOINT-NEXT: %mul = prim.mul %div_1, %div : tensor<10xf32>
// JOINT-NEXT: %neg = prim.neg %mul : tensor<10xf32>
// JOINT-NEXT: %sign = prim.sign %a : tensor<10xf32>
// JOINT-NEXT: %mul_1 = prim.mul %neg, %sign : tensor<10xf32>
// JOINT-NEXT: %add_1 = prim.add %div_1, %mul_1 : tensor<10xf32>
// JOINT-NEXT: func.return %div, %cmp, %add_1 : tensor<10xf32>, tensor<i1>, tensor<10xf32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %abs = prim.abs %a : tensor<10xf32>
// CUT-NEXT: %const = prim.const {value = 1.0} : tensor<10xf32>
// CUT-NEXT: %add = prim.add %abs, %const : tensor<10xf32>
// CUT-NEXT: %div = prim.div %a, %add : tensor<10xf32>
// CUT-NEXT: %reduce = prim.reduce %b {kind = "add", dims = [0]} : tensor<f32>
// CUT-NEXT: %const_1 = prim.const {value = 0.0} : tensor<f32>
// CUT-NEXT: %cmp = prim.cmp %reduce, %const_1 {predicate = "lt"} : tensor<i1>
// CUT-NEXT: func.return %div, %cmp, %a : tensor<10xf32>, tensor<i1>, tensor<10xf32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %abs = prim.abs %a : tensor<10xf32>
// CUT-NEXT: %const = prim.const {value = 1.0} : tensor<10xf32>
// CUT-NEXT: %add = prim.add %abs, %const : tensor<10xf32>
// CUT-NEXT: %div = prim.div %tangent, %add : tensor<10xf32>
// CUT-NEXT: %div_1 = prim.div %a, %add : tensor<10xf32>
// CUT-NEXT: %mul = prim.mul %div, %div_1 : tensor<10xf32>
// CUT-NEXT: %neg = prim.neg %mul : tensor<10xf32>
// CUT-NEXT: %sign = prim.sign %a : tensor<10xf32>
// CUT-NEXT: %mul_1 = prim.mul %neg, %sign : tensor<10xf32>
// CUT-NEXT: %add_1 = prim.add %div, %mul_1 : tensor<10xf32>
// CUT-NEXT: func.return %add_1 : tensor<10xf32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %a {sizes = [10], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = 1.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %abs = prim.abs %load : f32
// KERNEL-NEXT: %add = prim.add %abs, %const : f32
// KERNEL-NEXT: %div = prim.div %load, %add : f32
// KERNEL-NEXT: kernel.store %div {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<10xf32>
// KERNEL-NEXT: %fused_1 = kernel.fused %b {sizes = [10], classes = ["row"], partitions = 1, vector = 0, width = 16, unroll = 4, places = {{\[\[}}"output", 1]]} ({
// KERNEL-NEXT: %const_1 = prim.const {value = 0.0} : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %reduce = kernel.reduce %load_1 {kind = "add", dims = [0]} : f32
// KERNEL-NEXT: %cmp = prim.cmp %reduce, %const_1 {predicate = "lt"} : i1
// KERNEL-NEXT: kernel.store %cmp {result = 0, map = []}
// KERNEL-NEXT: }) : tensor<i1>
// KERNEL-NEXT: func.return %fused, %fused_1, %a : tensor<10xf32>, tensor<i1>, tensor<10xf32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused = kernel.fused %a, %tangent {sizes = [10], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 1, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0]} : f32
// KERNEL-NEXT: %sign = prim.sign %load : f32
// KERNEL-NEXT: %const = prim.const {value = 1.0} : f32
// KERNEL-NEXT: %abs = prim.abs %load : f32
// KERNEL-NEXT: %add = prim.add %abs, %const : f32
// KERNEL-NEXT: %div = prim.div %load, %add : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = [d0]} : f32
// KERNEL-NEXT: %div_1 = prim.div %load_1, %add : f32
// KERNEL-NEXT: %mul = prim.mul %div_1, %div : f32
// KERNEL-NEXT: %neg = prim.neg %mul : f32
// KERNEL-NEXT: %mul_1 = prim.mul %neg, %sign : f32
// KERNEL-NEXT: %add_1 = prim.add %div_1, %mul_1 : f32
// KERNEL-NEXT: kernel.store %add_1 {result = 0, map = [d0]}
// KERNEL-NEXT: }) : tensor<10xf32>
// KERNEL-NEXT: func.return %fused : tensor<10xf32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["abs(Tensor self) -> Tensor", "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", "div.Tensor(Tensor self, Tensor other) -> Tensor", "lt.Scalar(Tensor self, Scalar other) -> Tensor", "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"]>} {
  func.func @main(%a: !aten.ref<10xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "a"}, %b: !aten.ref<10xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "b"}) -> (!aten.ref<10xf32> {autodiff.output}, !aten.ref<i1> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0], ["value", 1]]>} {
    %abs = aten.call %a {overload = "abs.default", args = [arg0]} : !aten.ref<10xf32>
    %add = aten.call %abs {overload = "add.Tensor", args = [arg0, 1, 1]} : !aten.ref<10xf32>
    %div = aten.call %a, %add {overload = "div.Tensor", args = [arg0, arg1]} : !aten.ref<10xf32>
    %sum = aten.call %b {overload = "sum.default", args = [arg0, none]} : !aten.ref<f32>
    %lt = aten.call %sum {overload = "lt.Scalar", args = [arg0, 0]} : !aten.ref<i1>
    func.return %div, %lt : !aten.ref<10xf32>, !aten.ref<i1>
  }
}
