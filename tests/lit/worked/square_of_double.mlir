// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: A2

// (2x)²: the power's rule, then the product's.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %const = prim.const {value = 2.0} : tensor<f32>
// PRIM-NEXT: %mul = prim.mul %x, %const : tensor<f32>
// PRIM-NEXT: %mul_1 = prim.mul %mul, %mul : tensor<f32>
// PRIM-NEXT: func.return %mul_1 : tensor<f32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %const = prim.const {value = 2.0} : tensor<f32>
// JOINT-NEXT: %mul = prim.mul %x, %const : tensor<f32>
// JOINT-NEXT: %mul_1 = prim.mul %mul, %mul : tensor<f32>
// JOINT-NEXT: %mul_2 = prim.mul %tangent, %mul : tensor<f32>
// JOINT-NEXT: %add = prim.add %mul_2, %mul_2 : tensor<f32>
// JOINT-NEXT: %mul_3 = prim.mul %add, %const : tensor<f32>
// JOINT-NEXT: func.return %mul_1, %mul_3 : tensor<f32>, tensor<f32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %const = prim.const {value = 2.0} : tensor<f32>
// CUT-NEXT: %mul = prim.mul %x, %const : tensor<f32>
// CUT-NEXT: %mul_1 = prim.mul %mul, %mul : tensor<f32>
// CUT-NEXT: func.return %mul_1, %x : tensor<f32>, tensor<f32>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %const = prim.const {value = 2.0} : tensor<f32>
// CUT-NEXT: %mul = prim.mul %x, %const : tensor<f32>
// CUT-NEXT: %mul_1 = prim.mul %tangent, %mul : tensor<f32>
// CUT-NEXT: %add = prim.add %mul_1, %mul_1 : tensor<f32>
// CUT-NEXT: %mul_2 = prim.mul %add, %const : tensor<f32>
// CUT-NEXT: func.return %mul_2 : tensor<f32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %fused = kernel.fused %x {sizes = [], classes = [], partitions = 1, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = 2.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = []} : f32
// KERNEL-NEXT: %mul = prim.mul %load, %const : f32
// KERNEL-NEXT: %mul_1 = prim.mul %mul, %mul : f32
// KERNEL-NEXT: kernel.store %mul_1 {result = 0, map = []}
// KERNEL-NEXT: }) : tensor<f32>
// KERNEL-NEXT: func.return %fused, %x : tensor<f32>, tensor<f32>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused = kernel.fused %x, %tangent {sizes = [], classes = [], partitions = 1, places = {{\[\[}}"output", 0]]} ({
// KERNEL-NEXT: %const = prim.const {value = 2.0} : f32
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = []} : f32
// KERNEL-NEXT: %mul = prim.mul %load, %const : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = []} : f32
// KERNEL-NEXT: %mul_1 = prim.mul %load_1, %mul : f32
// KERNEL-NEXT: %add = prim.add %mul_1, %mul_1 : f32
// KERNEL-NEXT: %mul_2 = prim.mul %add, %const : f32
// KERNEL-NEXT: kernel.store %mul_2 {result = 0, map = []}
// KERNEL-NEXT: }) : tensor<f32>
// KERNEL-NEXT: func.return %fused : tensor<f32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["mul.Tensor(Tensor self, Tensor other) -> Tensor", "pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"]>} {
  func.func @main(%x: !aten.ref<f32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "x"}) -> (!aten.ref<f32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %mul = aten.call %x {overload = "mul.Tensor", args = [arg0, 2]} : !aten.ref<f32>
    %pow = aten.call %mul {overload = "pow.Tensor_Scalar", args = [arg0, 2]} : !aten.ref<f32>
    func.return %pow : !aten.ref<f32>
  }
}
