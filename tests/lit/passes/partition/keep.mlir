// RUN: isthmus-opt %s -p partition --split-input-file | filecheck %s
// What must not run twice, and what must not be read later: each function is named by its reason.

// A softmax is a pass of its own: its result is kept though its input would cost as much.
// CHECK-LABEL: builtin.module @softmax_runs_once
// CHECK:       func.func @forward
// CHECK:         %[[P:.*]] = prim.softmax
// CHECK:         func.return {{.*}}, %[[P]] :
// CHECK:       func.func @backward
// CHECK-NOT:     prim.softmax
builtin.module @softmax_runs_once {
  func.func @joint(%x: tensor<4x4xf32> {autodiff.primal}, %w: tensor<4x4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4x4xf32> {autodiff.tangent = 0})
      -> (tensor<4x4xf32> {autodiff.output}, tensor<4x4xf32> {autodiff.gradient = 1}) {
    %h = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
    %p = prim.softmax %h {dim = 1} : tensor<4x4xf32>
    %y = prim.sin %p : tensor<4x4xf32>
    %c = prim.cos %p : tensor<4x4xf32>
    %g = prim.mul %t, %c : tensor<4x4xf32>
    func.return %y, %g : tensor<4x4xf32>, tensor<4x4xf32>
  }
}

// -----

// A library call promises nothing, so not even a checkpoint region runs it twice.
// CHECK-LABEL: builtin.module @a_library_call_runs_once
// CHECK:       func.func @backward
// CHECK-NOT:     prim.opaque
builtin.module @a_library_call_runs_once {
  func.func @joint(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4xf32> {autodiff.tangent = 0})
      -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0}) {
    %b = prim.opaque %x {callee = "special_i0", args = [arg0], autodiff.recompute = "must_recompute"} : tensor<4xf32>
    %y = prim.sin %b : tensor<4xf32>
    %c = prim.cos %b : tensor<4xf32>
    %g = prim.mul %t, %c : tensor<4xf32>
    func.return %y, %g : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// x = x + f(x): to compute the sum again would read two tensors for one, and all of them in a deep network.
// CHECK-LABEL: builtin.module @a_sum_of_two_streams_is_kept
// CHECK:       func.func @forward
// CHECK:         %[[S:.*]] = prim.add
// CHECK:         func.return {{.*}}, %[[S]] :
// CHECK:       func.func @backward
// CHECK-NOT:     prim.add
builtin.module @a_sum_of_two_streams_is_kept {
  func.func @joint(%x: tensor<4x4xf32> {autodiff.primal}, %w: tensor<4x4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4x4xf32> {autodiff.tangent = 0})
      -> (tensor<4x4xf32> {autodiff.output}, tensor<4x4xf32> {autodiff.gradient = 1}) {
    %h = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
    %k = prim.dot %h, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x4xf32>
    %s = prim.add %h, %k : tensor<4x4xf32>
    %y = prim.sin %s : tensor<4x4xf32>
    %c = prim.cos %s : tensor<4x4xf32>
    %g = prim.mul %t, %c : tensor<4x4xf32>
    func.return %y, %g : tensor<4x4xf32>, tensor<4x4xf32>
  }
}

// -----

// b is overwritten after forward, so that its old value is not free: sigmoid(b), which the user gets, is.
// CHECK-LABEL: builtin.module @an_overwritten_argument_is_not_read_again
// CHECK:       func.func @forward
// CHECK:         %[[Z:.*]] = prim.logistic %b
// CHECK:         func.return %[[Z]], {{.*}}, %[[Z]] :
builtin.module @an_overwritten_argument_is_not_read_again {
  func.func @joint(%b: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4xf32> {autodiff.tangent = 0})
      -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {isthmus.mutated = 0}, tensor<4xf32> {autodiff.gradient = 0}) {
    %z = prim.logistic %b : tensor<4xf32>
    %factor = prim.const {value = 0.5} : tensor<4xf32>
    %new = prim.mul %b, %factor : tensor<4xf32>
    %one = prim.const {value = 1.0} : tensor<4xf32>
    %d = prim.sub %one, %z : tensor<4xf32>
    %e = prim.mul %z, %d : tensor<4xf32>
    %g = prim.mul %t, %e : tensor<4xf32>
    func.return %z, %new, %g : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
