// RUN: isthmus-opt %s -p "plan-memory{write-back=64}" | filecheck %s
// RUN: isthmus-opt %s -p plan-memory | filecheck %s --check-prefix=OFF

// A small new value that cannot be made in place, since the old one is read later: the program copies it at its end.
// CHECK-LABEL: @read_later
// CHECK-SAME:    isthmus.written_back = #isthmus.lit<[1]>
// CHECK:         places = [["temporary", 0]]
// CHECK:         places = [["output", 0]]
// OFF-LABEL:   @read_later
// OFF-NOT:       written_back
// OFF:           places = [["output", 1]]
func.func @read_later(%p: tensor<4xf32> {autodiff.primal})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {isthmus.mutated = 0, isthmus.hidden}) {
  %q = kernel.fused %p {sizes = [4], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %w = prim.neg %v : f32
    kernel.store %w {result = 0, map = [d0]}
  }) : tensor<4xf32>
  %y = kernel.fused %p {sizes = [4], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %w = prim.sin %v : f32
    kernel.store %w {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %y, %q : tensor<4xf32>, tensor<4xf32>
}

// The caller is given the old value, too: nothing is written over it.
// CHECK-LABEL: @old_one_is_returned
// CHECK-NOT:     written_back
// CHECK:         places = [["output", 1]]
func.func @old_one_is_returned(%p: tensor<4xf32> {autodiff.primal})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {isthmus.mutated = 0, isthmus.hidden}) {
  %q = kernel.fused %p {sizes = [4], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %w = prim.neg %v : f32
    kernel.store %w {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %p, %q : tensor<4xf32>, tensor<4xf32>
}

// Autograd sees the write: the value is given to the caller, who gives it a history.
// CHECK-LABEL: @seen_by_autograd
// CHECK-NOT:     written_back
func.func @seen_by_autograd(%p: tensor<4xf32> {autodiff.primal})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {isthmus.mutated = 0}) {
  %q = kernel.fused %p {sizes = [4], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %w = prim.neg %v : f32
    kernel.store %w {result = 0, map = [d0]}
  }) : tensor<4xf32>
  %y = kernel.fused %p {sizes = [4], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %w = prim.sin %v : f32
    kernel.store %w {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %y, %q : tensor<4xf32>, tensor<4xf32>
}
