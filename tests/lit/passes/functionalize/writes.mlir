// RUN: isthmus-opt %s -p functionalize --split-input-file | filecheck %s

// ROW: T4
// An in-place op on a fresh tensor is a value like any other; nothing is copied back.
func.func @fresh(%x: !aten.ref<4xf32> {autodiff.primal}) -> !aten.ref<4xf32> {
  %y = aten.call %x {overload = "add.Tensor", args = [arg0, 1, 1]} : !aten.ref<4xf32>
  %z = aten.call %y {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<4xf32>
  %s = aten.call %y {overload = "sin.default", args = [arg0]} : !aten.ref<4xf32>
  func.return %s : !aten.ref<4xf32>
}
// CHECK-LABEL: @fresh
// CHECK-SAME:  (%x: tensor<4xf32> {autodiff.primal}) -> (tensor<4xf32> {autodiff.output})
// CHECK-NEXT:    %add = aten.call %x {overload = "add.Tensor", args = [arg0, 1, 1]} : tensor<4xf32>
// CHECK-NEXT:    %mul = aten.call %add {overload = "mul_.Tensor", args = [arg0, 2.0], updates = [0]} : tensor<4xf32>
// CHECK-NEXT:    %sin = aten.call %mul {overload = "sin.default", args = [arg0]} : tensor<4xf32>
// CHECK-NEXT:    func.return %sin : tensor<4xf32>

// -----

// ROW: T21
// A written argument is a further result; the user's own output comes first.
func.func @argument(%a: !aten.ref<4xf32> {autodiff.primal}, %b: !aten.ref<4xf32> {autodiff.primal}) -> !aten.ref<f32> {
  %c = aten.call %a {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<4xf32>
  %d = aten.call %c, %b {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<4xf32>
  %s = aten.call %d {overload = "sum.default", args = [arg0, none]} : !aten.ref<f32>
  func.return %s : !aten.ref<f32>
}
// CHECK-LABEL: @argument
// CHECK-SAME:  -> (tensor<f32> {autodiff.output}, tensor<4xf32> {isthmus.mutated = 0 : i64})
// CHECK-NEXT:    %mul = aten.call %a {overload = "mul_.Tensor"
// CHECK:         func.return %sum, %mul

// -----

// A write through a view is put back into its base; a sibling reads the new base.
func.func @through_a_view(%x: !aten.ref<4x4xf32> {autodiff.primal}) -> !aten.ref<4x4xf32, strides = [1, 4]> {
  %y = aten.call %x {overload = "clone.default", args = [arg0, none]} : !aten.ref<4x4xf32>
  %t = aten.call %y {overload = "t.default", args = [arg0], aliases = [0]} : !aten.ref<4x4xf32, strides = [1, 4]>
  %v = aten.call %y {overload = "select.int", args = [arg0, 0, 1], aliases = [0]} : !aten.ref<4xf32, offset = 4>
  %w = aten.call %v {overload = "zero_.default", args = [arg0], mutates = [0], aliases = [0]} : !aten.ref<4xf32, offset = 4>
  %s = aten.call %t {overload = "sin.default", args = [arg0]} : !aten.ref<4x4xf32, strides = [1, 4]>
  func.return %s : !aten.ref<4x4xf32, strides = [1, 4]>
}
// CHECK-LABEL: @through_a_view
// CHECK-SAME:  {autodiff.output, isthmus.strides = {{.*}}[1, 4]
// CHECK-NEXT:    %clone = aten.call %x
// CHECK-NEXT:    %select = aten.call %clone {overload = "select.int"
// CHECK-NEXT:    %zero = aten.call %select {overload = "zero_.default", args = [arg0], updates = [0]}
// CHECK-NEXT:    %select_scatter = aten.call %clone, %zero {overload = "select_scatter.default", args = [arg0, arg1, 0, 1]}
// CHECK-NEXT:    %t = aten.call %select_scatter {overload = "t.default", args = [arg0]} : tensor<4x4xf32>
// CHECK-NEXT:    %sin = aten.call %t

// -----

// Must not fire: a view that nobody reads is never taken, a copy of a slice onto itself is nothing.
func.func @nothing(%x: !aten.ref<4xf32> {autodiff.primal}) -> !aten.ref<4xf32> {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : !aten.ref<4xf32>
  %a = aten.call %y {overload = "slice.Tensor", args = [arg0, 0, 1, 3, 1], aliases = [0]} : !aten.ref<2xf32, offset = 1>
  %b = aten.call %y {overload = "slice.Tensor", args = [arg0, 0, 1, 3, 1], aliases = [0]} : !aten.ref<2xf32, offset = 1>
  %c = aten.call %a, %b {overload = "copy_.default", args = [arg0, arg1, false], mutates = [0], aliases = [0]} : !aten.ref<2xf32, offset = 1>
  func.return %y : !aten.ref<4xf32>
}
// CHECK-LABEL: @nothing
// CHECK-NEXT:    %sin = aten.call %x
// CHECK-NEXT:    func.return %sin

// -----

// Must not fire: a part that was not written is not read again.
func.func @disjoint(%x: !aten.ref<4xf32> {autodiff.primal}) -> !aten.ref<2xf32> {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : !aten.ref<4xf32>
  %q, %k = aten.call %y {overload = "split.Tensor", args = [arg0, 2, 0], aliases = [0, 0]} : !aten.ref<2xf32>, !aten.ref<2xf32, offset = 2>
  %e = aten.call %k {overload = "exp.default", args = [arg0]} : !aten.ref<2xf32>
  %z = aten.call %q {overload = "zero_.default", args = [arg0], mutates = [0], aliases = [0]} : !aten.ref<2xf32>
  %c = aten.call %e, %k {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<2xf32>
  func.return %c : !aten.ref<2xf32>
}
// CHECK-LABEL: @disjoint
// CHECK:         [[K:%split.*]] = aten.call %sin {overload = "split.Tensor"
// CHECK-NOT:     "split.Tensor"
// CHECK:         func.return %mul

// -----

// Statistics: what autograd does not see is a constant, and the caller's buffer keeps its history.
func.func @statistics(%x: !aten.ref<2x3xf32> {autodiff.primal, autodiff.wants_gradient}, %m: !aten.ref<3xf32> {autodiff.primal}, %v: !aten.ref<3xf32> {autodiff.primal}) -> !aten.ref<2x3xf32> {
  %y = aten.call %x, %m, %v {overload = "batch_norm.default", args = [arg0, none, none, arg1, arg2, true, 0.1, 1.0e-05, false], mutates = [1, 2]} : !aten.ref<2x3xf32>
  func.return %y : !aten.ref<2x3xf32>
}
// CHECK-LABEL: @statistics
// CHECK-SAME:  (tensor<2x3xf32> {autodiff.output}, tensor<3xf32> {isthmus.mutated = 1 : i64, isthmus.hidden}, tensor<3xf32> {isthmus.mutated = 2 : i64, isthmus.hidden})
// CHECK-NEXT:    %batch_norm, [[M:%.*]], [[V:%.*]] = aten.call %x, %m, %v {overload = "batch_norm.default", {{.*}}updates = [1, 2], non_differentiable = [1, 2]} : tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>
// CHECK-NEXT:    func.return %batch_norm, [[M]], [[V]]

// -----

// Data written under no_grad keep the history of the tensor: y = new data, derivative by the old value.
func.func @unseen(%x: !aten.ref<3xf32> {autodiff.primal, autodiff.wants_gradient}) -> !aten.ref<3xf32> {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : !aten.ref<3xf32>
  %z = aten.call %y {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0], grad = false} : !aten.ref<3xf32>
  func.return %z : !aten.ref<3xf32>
}
// CHECK-LABEL: @unseen
// CHECK:         %mul = aten.call %sin {{.*}}non_differentiable = [0]}
// CHECK-NEXT:    [[R:%.*]] = autodiff.custom %sin, %mul {saved = 0, gradients = [0, -1]}
// CHECK:         func.return [[R]]
