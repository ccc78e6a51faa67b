// RUN: isthmus-opt %s -p "functionalize,decompose" | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify" | filecheck %s --check-prefix=JOINT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition" | filecheck %s --check-prefix=CUT
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" | filecheck %s --check-prefix=KERNEL
// RUN: isthmus-opt %s -p "functionalize,decompose,differentiate,simplify,end-differentiation,partition,select-library,fuse,schedule,plan-memory" -t llvm | filecheck %s --check-prefix=LLVM
// ROW: T2, T11, T12, M3, M6

// (x @ w).relu().sum(): a bool mask crosses, 16 bytes; x is alive anyway and read transposed; no gradient of x; one product a direction.

// PRIM-LABEL: func.func @main
// PRIM-NEXT: %dot = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
// PRIM-NEXT: %relu = prim.relu %dot : tensor<4x4xf32>
// PRIM-NEXT: %reduce = prim.reduce %relu {kind = "add", dims = [0, 1]} : tensor<f32>
// PRIM-NEXT: func.return %reduce : tensor<f32>

// JOINT-LABEL: func.func @joint
// JOINT-NEXT: %dot = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
// JOINT-NEXT: %relu = prim.relu %dot : tensor<4x4xf32>
// JOINT-NEXT: %reduce = prim.reduce %relu {kind = "add", dims = [0, 1]} : tensor<f32>
// JOINT-NEXT: %broadcast = prim.broadcast %tangent {dims = []} : tensor<4x4xf32>
// JOINT-NEXT: %const = prim.const {value = 0.0} : tensor<4x4xf32>
// JOINT-NEXT: %cmp = prim.cmp %relu, %const {predicate = "le"} : tensor<4x4xi1>
// JOINT-NEXT: %select = prim.select %cmp, %const, %broadcast : tensor<4x4xf32>
// JOINT-NEXT: %dot_1 = prim.dot %x, %select {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x4xf32>
// JOINT-NEXT: func.return %reduce, %dot_1 : tensor<f32>, tensor<4x4xf32>

// CUT-LABEL: func.func @forward
// CUT-NEXT: %dot = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
// CUT-NEXT: %relu = prim.relu %dot : tensor<4x4xf32>
// CUT-NEXT: %reduce = prim.reduce %relu {kind = "add", dims = [0, 1]} : tensor<f32>
// CUT-NEXT: %const = prim.const {value = 0.0} : tensor<4x4xf32>
// CUT-NEXT: %cmp = prim.cmp %relu, %const {predicate = "le"} : tensor<4x4xi1>
// CUT-NEXT: func.return %reduce, %x, %cmp : tensor<f32>, tensor<4x4xf32>, tensor<4x4xi1>
// CUT-LABEL: func.func @backward
// CUT-NEXT: %broadcast = prim.broadcast %tangent {dims = []} : tensor<4x4xf32>
// CUT-NEXT: %const = prim.const {value = 0.0} : tensor<4x4xf32>
// CUT-NEXT: %select = prim.select %cmp, %const, %broadcast : tensor<4x4xf32>
// CUT-NEXT: %dot = prim.dot %x, %select {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x4xf32>
// CUT-NEXT: func.return %dot : tensor<4x4xf32>

// KERNEL-LABEL: func.func @forward
// KERNEL-NEXT: %extern = kernel.extern %x, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]], cost = 128.0, places = {{\[\[}}"temporary", 0]]} : tensor<4x4xf32>
// KERNEL-NEXT: %fused, %fused_1 = kernel.fused %extern {sizes = [16], classes = ["row"], partitions = 1, vector = 0, width = 16, unroll = 4, places = {{\[\[}}"output", 0], ["saved", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = [d0 floordiv 4, d0 mod 4]} : f32
// KERNEL-NEXT: %relu = prim.relu %load : f32
// KERNEL-NEXT: %reduce = kernel.reduce %relu {kind = "add", dims = [0]} : f32
// KERNEL-NEXT: %const = prim.const {value = 0.0} : f32
// KERNEL-NEXT: %cmp = prim.cmp %relu, %const {predicate = "le"} : i1
// KERNEL-NEXT: kernel.store %reduce {result = 0, map = []}
// KERNEL-NEXT: kernel.store %cmp {result = 1, map = [d0 floordiv 4, d0 mod 4]}
// KERNEL-NEXT: }) : tensor<f32>, tensor<4x4xi1>
// KERNEL-NEXT: func.return %fused, %x, %fused_1 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xi1>
// KERNEL-LABEL: func.func @backward
// KERNEL-NEXT: %fused = kernel.fused %tangent, %cmp {sizes = [16], classes = ["parallel"], partitions = 1, vector = 0, width = 16, unroll = 2, places = {{\[\[}}"temporary", 0]]} ({
// KERNEL-NEXT: %load = kernel.load {operand = 0, map = []} : f32
// KERNEL-NEXT: %const = prim.const {value = 0.0} : f32
// KERNEL-NEXT: %load_1 = kernel.load {operand = 1, map = [d0 floordiv 4, d0 mod 4]} : i1
// KERNEL-NEXT: %select = prim.select %load_1, %const, %load : f32
// KERNEL-NEXT: kernel.store %select {result = 0, map = [d0 floordiv 4, d0 mod 4]}
// KERNEL-NEXT: }) : tensor<4x4xf32>
// KERNEL-NEXT: %extern = kernel.extern %x, %fused {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [0]], ["contract_b", [0]]], cost = 128.0, places = {{\[\[}}"output", 0]]} : tensor<4x4xf32>
// KERNEL-NEXT: func.return %extern : tensor<4x4xf32>

// LLVM: define void @kernel_{{[0-9a-f]+}}(
// LLVM: define void @kernel_{{[0-9a-f]+}}(

builtin.module attributes {aten.schemas = #isthmus.lit<["matmul(Tensor self, Tensor other) -> Tensor", "relu(Tensor self) -> Tensor", "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"]>} {
  func.func @main(%x: !aten.ref<4x4xf32> {autodiff.primal, isthmus.source = "x"}, %w: !aten.ref<4x4xf32> {autodiff.primal, autodiff.wants_gradient, isthmus.source = "w"}) -> (!aten.ref<f32> {autodiff.output}) attributes {isthmus.outputs = #isthmus.lit<[["value", 0]]>} {
    %matmul = aten.call %x, %w {overload = "matmul.default", args = [arg0, arg1]} : !aten.ref<4x4xf32>
    %relu = aten.call %matmul {overload = "relu.default", args = [arg0]} : !aten.ref<4x4xf32>
    %sum = aten.call %relu {overload = "sum.default", args = [arg0, none]} : !aten.ref<f32>
    func.return %sum : !aten.ref<f32>
  }
}
