// RUN: isthmus-opt %s | isthmus-opt | filecheck %s

// ROW: C1
// A rule of the user's: forward and backward are regions, `gradients` says whose gradient backward yields.
// CHECK-LABEL: @custom
func.func @custom(%x: !aten.ref<4xf32>, %k: !aten.ref<4xf32>) -> !aten.ref<4xf32> {
  // CHECK-NEXT: %y = autodiff.custom %x, %k {saved = 1, gradients = [0, -1]} ({
  %y = autodiff.custom %x, %k {saved = 1, gradients = [0, -1]} ({
  ^bb0(%a: !aten.ref<4xf32>, %b: !aten.ref<4xf32>):
    %s = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<4xf32>
    // CHECK: autodiff.yield %s, %a
    autodiff.yield %s, %a
  }, {
  ^bb0(%g: !aten.ref<4xf32>, %c: !aten.ref<4xf32>):
    %d = aten.call %g, %c {overload = "mul.Tensor", args = [arg0, arg1]} : !aten.ref<4xf32>
    autodiff.yield %d
  }) : !aten.ref<4xf32>
  func.return %y : !aten.ref<4xf32>
}

// CHECK-LABEL: @checkpoint
func.func @checkpoint(%x: !aten.ref<4xf32>) -> !aten.ref<4xf32> {
  // CHECK-NEXT: autodiff.checkpoint %x ({
  %y = autodiff.checkpoint %x ({
  ^bb0(%a: !aten.ref<4xf32>):
    // CHECK: autodiff.recompute = "must_save"
    %s = aten.call %a {overload = "sin.default", args = [arg0], autodiff.recompute = "must_save"} : !aten.ref<4xf32>
    autodiff.yield %s
  }) : !aten.ref<4xf32>
  func.return %y : !aten.ref<4xf32>
}

// Gradients inside a program: of one number by x, and seeded by y; w is not reached.
// CHECK-LABEL: @vjp
func.func @vjp(%x: !aten.ref<4xf32>, %w: !aten.ref<2xf32>) -> (!aten.ref<4xf32>, !aten.ref<4xf32>) {
  %y = autodiff.stop_gradient %x : !aten.ref<4xf32>
  %l = aten.call %x {overload = "sum.default", args = [arg0, none]} : !aten.ref<f32>
  // CHECK: autodiff.vjp %l, %x, %w {outs = 1, ins = 2, seeds = [none], create_graph = true, present = [0]}
  %d = autodiff.vjp %l, %x, %w {outs = 1, ins = 2, seeds = [none], create_graph = true, present = [0]} : !aten.ref<4xf32>
  // CHECK: autodiff.vjp %x, %x, %y {outs = 1, ins = 1, seeds = [arg2], create_graph = false, present = [0]}
  %e = autodiff.vjp %x, %x, %y {outs = 1, ins = 1, seeds = [arg2], create_graph = false, present = [0]} : !aten.ref<4xf32>
  func.return %d, %e : !aten.ref<4xf32>, !aten.ref<4xf32>
}
