// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: I3, I4

// floor(x) + ceil(x): one body, nothing of it in memory; the derivative is 0.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %floor = prim.floor %x : tensor<2x3xf32>
// PRIM-NEXT: %ceil = prim.ceil %x : tensor<2x3xf32>
// PRIM-NEXT: %add = prim.add %floor, %ceil : tensor<2x3xf32>
// PRIM-NEXT: func.return %add : tensor<2x3xf32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %floor = prim.floor %x : tensor<2x3xf32>
// JOINT-NEXT: %ceil = prim.ceil %x : tensor<2x3xf32>
// JOINT-NEXT: %add = prim.add %floor, %ceil : tensor<2x3xf32>
// JOINT-NEXT: %const = prim.const {value = 0.0} : tensor<2x3xf32>
// JOINT-NEXT: func.return %add, %const : tensor<2x3xf32>, tensor<2x3xf32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %floor = prim.floor %x : tensor<2x3xf32>
// CUT-NEXT: %ceil = prim.ceil %x : tensor<2x3xf32>
// CUT-NEXT: %add = prim.add %floor, %ceil : tensor<2x3xf32>
// CUT-NEXT: func.return %add : tensor<2x3xf32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %const = prim.const {value = 0.0} : tensor<2x3xf32>
// CUT-NEXT: func.return %const : tensor<2x3xf32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %x {sizes = [6], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0 floordiv 3, d0 mod 3]} : f32
// KERNEL-NEXT: %ceil = prim.ceil %load : f32
// KERNEL-NEXT: %floor = prim.floor %load : f32
// KERNEL-NEXT: %add = prim.add %floor, %ceil : f32
// KERNEL-NEXT: kernel.store %add {result = 0, map = [d0 floordiv 3, d0 mod 3]}
// KERNEL-NEXT: }) : tensor<2x3xf32>
// KERNEL-NEXT: func.return %fused : tensor<2x3xf32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused = kernel.fused {sizes = [6], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = 0.0} : f32
// KERNEL-NEXT: kernel.store %const {result = 0, map = [d0 floordiv 3, d0 mod 3]}
// KERNEL-NEXT: }) : tensor<2x3xf32>
// KERNEL-NEXT: func.return %fused : tensor<2x3xf32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", "ceil(Tensor self) -> Tensor", "floor(Tensor self) -> Tensor"]>} {
  func.func @main(%x: !aten.ref<2x3xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "x"}) -> (!aten.ref<2x3xf32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %floor = aten.call %x {overload = "floor.default", args = [arg0]} : !aten.ref<2x3xf32>
    %ceil = aten.call %x {overload = "ceil.default", args = [arg0]} : !aten.ref<2x3xf32>
    %add = aten.call %floor, %ceil {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<2x3xf32>
    func.return %add : !aten.ref<2x3xf32>
  }
}
