// RUN: isthmus-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: every '?' needs its size
func.func @no_symbol(%x: !aten.ref<?xf32>) {
  func.return
}

// -----

// CHECK: one per dimension
func.func @strides(%x: !aten.ref<4xf32, strides = [1, 2]>) {
  func.return
}

// -----

// CHECK: args name the operands
func.func @unused_operand(%x: !aten.ref<4xf32>) {
  %y = aten.call %x {overload = "neg.default", args = []} : !aten.ref<4xf32>
  func.return
}

// -----

// CHECK: needs an operand or -1 for each result
func.func @alias_of_nothing(%x: !aten.ref<4xf32>) {
  %y = aten.call %x {overload = "neg.default", args = [arg0], aliases = [1]} : !aten.ref<4xf32>
  func.return
}

// -----

// CHECK: a call on values cannot mutate
func.func @values_are_not_written(%x: tensor<4xf32>) {
  %y = aten.call %x {overload = "neg_.default", args = [arg0], mutates = [0]} : tensor<4xf32>
  func.return
}

// -----

// CHECK: carries no schema of 'neg.default'
builtin.module attributes {aten.schemas = #isthmus.lit<["abs(Tensor self) -> Tensor"]>} {
  func.func @unknown(%x: !aten.ref<4xf32>) {
    %y = aten.call %x {overload = "neg.default", args = [arg0]} : !aten.ref<4xf32>
    func.return
  }
}

// -----

// CHECK: argument 'dim' takes int[], not 1
builtin.module attributes {aten.schemas = #isthmus.lit<["flip(Tensor self, int[] dims) -> Tensor", "f.default(Tensor self, int[] dim) -> Tensor"]>} {
  func.func @wrong_argument(%x: !aten.ref<4xf32>) {
    %y = aten.call %x {overload = "f.default", args = [arg0, 1]} : !aten.ref<4xf32>
    func.return
  }
}

// -----

// ROW: D16
// CHECK: what region else yields: !aten.ref<4xf32>, !aten.ref<4xf32> where !aten.ref<4xf32> is expected
func.func @branches_disagree(%p: !aten.ref<i1>, %x: !aten.ref<4xf32>) {
  %r = aten.cond %p, %x ({
  ^bb0(%a: !aten.ref<4xf32>):
    aten.yield %a
  }, {
  ^bb0(%b: !aten.ref<4xf32>):
    aten.yield %b, %b
  }) : !aten.ref<4xf32>
  func.return
}
