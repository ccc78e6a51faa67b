// RUN: isthmus-opt %s | isthmus-opt | filecheck %s

// ROW: P1
// The module carries the schemas of its calls: they are checked without torch.
builtin.module attributes {aten.schemas = #isthmus.lit<[
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    "mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
    "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
    "cat(Tensor[] tensors, int dim=0) -> Tensor",
    "mylib::scale(Tensor x, float k) -> Tensor"]>} {

  // What a call writes and shares is on the call; strides and offsets are in the types.
  // CHECK-LABEL: @calls
  // CHECK-SAME: (%x: !aten.ref<4x4xf32>, %b: !aten.ref<4xf32, strides = [2], offset = 1>)
  func.func @calls(%x: !aten.ref<4x4xf32>, %b: !aten.ref<4xf32, strides = [2], offset = 1>) -> !aten.ref<2x8xf32> {
    // CHECK-NEXT: %y = aten.call %x, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
    %y = aten.call %x, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
    // CHECK-NEXT: %z = aten.call %y {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0], grad = false}
    %z = aten.call %y {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0], grad = false} : !aten.ref<4x4xf32>
    // CHECK-NEXT: %s, %t = aten.call %z {overload = "split.Tensor", args = [arg0, 2, 0], aliases = [0, 0]}
    // CHECK-SAME: : !aten.ref<2x4xf32>, !aten.ref<2x4xf32, offset = 8>
    %s, %t = aten.call %z {overload = "split.Tensor", args = [arg0, 2, 0], aliases = [0, 0]} : !aten.ref<2x4xf32>, !aten.ref<2x4xf32, offset = 8>
    %u = aten.call %t {overload = "mylib::scale.default", args = [arg0, 0.5]} : !aten.ref<2x4xf32>
    // CHECK: aten.call %s, %u {overload = "cat.default", args = [{{\[arg0, arg1\]}}, 1]}
    %c = aten.call %s, %u {overload = "cat.default", args = [[arg0, arg1], 1]} : !aten.ref<2x8xf32>
    func.return %c : !aten.ref<2x8xf32>
  }

  // Symbolic sizes stand in the type after the question marks.
  // CHECK-LABEL: @sizes
  // CHECK-SAME: (%x: !aten.ref<?x4xui8, shape = [<"s0">, 4], strides = [1, <"s0">]>)
  func.func @sizes(%x: !aten.ref<?x4xui8, shape = [<"s0">, 4], strides = [1, <"s0">]>) {
    func.return
  }

  // CHECK-LABEL: @control
  func.func @control(%p: !aten.ref<i1>, %x: !aten.ref<4x4xf32>, %row: !aten.ref<4xf32>) {
    // CHECK-NEXT: aten.cond %p, %x ({
    %r = aten.cond %p, %x ({
    ^bb0(%a: !aten.ref<4x4xf32>):
      aten.yield %a
    }, {
    ^bb0(%b: !aten.ref<4x4xf32>):
      %c = aten.call %b, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
      aten.yield %c
    }) : !aten.ref<4x4xf32>
    // CHECK: aten.while_loop %r, %p {carried = 1} ({
    %w = aten.while_loop %r, %p {carried = 1} ({
    ^bb0(%d: !aten.ref<4x4xf32>, %q: !aten.ref<i1>):
      aten.yield %q
    }, {
    ^bb0(%e: !aten.ref<4x4xf32>, %q2: !aten.ref<i1>):
      aten.yield %e
    }) : !aten.ref<4x4xf32>
    // CHECK: %carry, %ys = aten.scan %row, %w {inits = 1, xs = 1} ({
    %carry, %ys = aten.scan %row, %w {inits = 1, xs = 1} ({
    ^bb0(%h: !aten.ref<4xf32>, %i: !aten.ref<4xf32>):
      aten.yield %i, %h
    }) : !aten.ref<4xf32>, !aten.ref<4x4xf32>
    // CHECK: aten.map %ys, %carry {xs = 1} ({
    %m = aten.map %ys, %carry {xs = 1} ({
    ^bb0(%k: !aten.ref<4xf32>, %l: !aten.ref<4xf32>):
      aten.yield %k
    }) : !aten.ref<4x4xf32>
    func.return
  }
}
