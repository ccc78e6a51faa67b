// RUN: isthmus-opt %s -p functionalize --split-input-file | filecheck %s

// ROW: T22, T23
// A view of an argument is not computed at all; a view of a result is taken again outside, its base is the result.
func.func @views(%x: !aten.ref<2x3xf32> {autodiff.primal}) -> (!aten.ref<3x2xf32, strides = [1, 3]>, !aten.ref<6xf32>) {
  %t = aten.call %x {overload = "t.default", args = [arg0], aliases = [0]} : !aten.ref<3x2xf32, strides = [1, 3]>
  %m = aten.call %x {overload = "mul.Tensor", args = [arg0, 2]} : !aten.ref<2x3xf32>
  %v = aten.call %m {overload = "view.default", args = [arg0, [-1]], aliases = [0]} : !aten.ref<6xf32>
  func.return %t, %v : !aten.ref<3x2xf32, strides = [1, 3]>, !aten.ref<6xf32>
}
// CHECK-LABEL: @views
// CHECK-SAME:  -> (tensor<2x3xf32> {autodiff.output})
// CHECK-SAME:  isthmus.outputs = {{.*}}["argument", 0, {{\[\[}}"t.default", [], {{\[\[}}3, 2], [1, 3], 0], none]]], ["alias", 0, {{\[\[}}"view.default", {{\[\[}}-1]], {{\[\[}}6], [1], 0], none]]]]
// CHECK-NEXT:    %mul = aten.call %x
// CHECK-NEXT:    func.return %mul : tensor<2x3xf32>

// -----

// The same storage returned twice is one result; a detached alias, and a view taken without gradients, are replayed as such.
func.func @shared(%x: !aten.ref<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (!aten.ref<4xf32>, !aten.ref<4xf32>, !aten.ref<2xf32, offset = 2>) {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : !aten.ref<4xf32>
  %d = aten.call %y {overload = "detach.default", args = [arg0], aliases = [0]} : !aten.ref<4xf32>
  %a, %b = aten.call %y {overload = "split.Tensor", args = [arg0, 2, 0], aliases = [0, 0], grad = false} : !aten.ref<2xf32>, !aten.ref<2xf32, offset = 2>
  func.return %y, %d, %b : !aten.ref<4xf32>, !aten.ref<4xf32>, !aten.ref<2xf32, offset = 2>
}
// CHECK-LABEL: @shared
// CHECK-SAME:  -> (tensor<4xf32> {autodiff.output})
// CHECK-SAME:  {{\[\[}}"value", 0], ["alias", 0, {{\[\[}}"detach.default", [], {{\[\[}}4], [1], 0], none]]], ["alias", 0, {{\[\[}}"split.Tensor", [2, 0], {{\[\[}}2], [1], 2], 1, true]]]]
// CHECK-NEXT:    %sin
// CHECK-NEXT:    func.return %sin

// -----

// Must not fire: an alias of a fresh tensor that nobody else has is that tensor.
func.func @alone(%x: !aten.ref<4xf32> {autodiff.primal}) -> !aten.ref<4xf32> {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : !aten.ref<4xf32>
  %c = aten.call %y {overload = "contiguous.default", args = [arg0, "contiguous_format"], aliases = [0]} : !aten.ref<4xf32>
  func.return %c : !aten.ref<4xf32>
}
// CHECK-LABEL: @alone
// CHECK-SAME:  isthmus.outputs = {{.*}}["value", 0]]

// -----

// ROW: T25
// x.t_(): the caller's tensor gets another geometry, and its new value is of that shape.
func.func @transposed(%x: !aten.ref<2x3xf32> {autodiff.primal}) -> (!aten.ref<3x2xf32, strides = [1, 3]> {autodiff.output}, !aten.ref<3x2xf32, strides = [1, 3]> {isthmus.rebound = #isthmus.lit<0>}) {
  %t = aten.call %x {overload = "t.default", args = [arg0], aliases = [0]} : !aten.ref<3x2xf32, strides = [1, 3]>
  %m = aten.call %t {overload = "mul_.Tensor", args = [arg0, 2], mutates = [0], aliases = [0]} : !aten.ref<3x2xf32, strides = [1, 3]>
  %s = aten.call %m {overload = "sin.default", args = [arg0]} : !aten.ref<3x2xf32, strides = [1, 3]>
  func.return %s, %m : !aten.ref<3x2xf32, strides = [1, 3]>, !aten.ref<3x2xf32, strides = [1, 3]>
}
// CHECK-LABEL: @transposed
// CHECK-SAME:  isthmus.rebound = {{.*}}[3, 2], [1, 3], 0]
// CHECK-SAME:  tensor<3x2xf32> {isthmus.mutated = 0 : i64})
// CHECK:         %t = aten.call %x
// CHECK-NEXT:    %mul = aten.call %t
// CHECK:         func.return %sin, %mul

// -----

// ROW: T24
// A view passed beside its base: a write to one is seen through the other; only what was written is copied back.
func.func @sharing(%x: !aten.ref<4xf32> {autodiff.primal}, %y: !aten.ref<2x2xf32> {autodiff.primal, isthmus.shares = #isthmus.lit<[0]>}) -> !aten.ref<2x2xf32> {
  %m = aten.call %x {overload = "mul_.Tensor", args = [arg0, 2], mutates = [0], aliases = [0]} : !aten.ref<4xf32>
  %s = aten.call %y {overload = "sin.default", args = [arg0]} : !aten.ref<2x2xf32>
  func.return %s : !aten.ref<2x2xf32>
}
// CHECK-LABEL: @sharing
// CHECK-SAME:  -> (tensor<2x2xf32> {autodiff.output}, tensor<4xf32> {isthmus.mutated = 0 : i64})
// CHECK-NEXT:    %mul = aten.call %x
// CHECK-NEXT:    %reshape = aten.call %mul {overload = "reshape.default", args = [arg0, [2, 2]]} : tensor<2x2xf32>
// CHECK-NEXT:    %sin = aten.call %reshape

// -----

// ROW: T20
// The same tensor twice: one of them is written, one is copied back.
func.func @twice(%a: !aten.ref<3xf32> {autodiff.primal}, %b: !aten.ref<3xf32> {autodiff.primal, isthmus.shares = #isthmus.lit<[0]>}) -> !aten.ref<3xf32> {
  %m = aten.call %b {overload = "mul_.Tensor", args = [arg0, 2], mutates = [0], aliases = [0]} : !aten.ref<3xf32>
  %s = aten.call %a, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<3xf32>
  func.return %s : !aten.ref<3xf32>
}
// CHECK-LABEL: @twice
// CHECK-SAME:  -> (tensor<3xf32> {autodiff.output}, tensor<3xf32> {isthmus.mutated = 1 : i64})
// CHECK-NEXT:    %mul = aten.call %b
// CHECK-NEXT:    %add = aten.call %mul, %mul
// CHECK-NEXT:    func.return %add, %mul

// -----

// Must not fire: a function on values has nothing to make functional.
func.func @values(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
// CHECK-LABEL: @values
// CHECK-SAME:  (%x: tensor<4xf32>) -> tensor<4xf32> {
