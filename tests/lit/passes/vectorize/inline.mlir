// RUN: isthmus-opt %s -p vectorize | filecheck %s

// What all examples share is computed once and broadcast where it meets an example.
// CHECK-LABEL: @shared
// CHECK-NEXT: %[[S:.*]] = prim.sin %w : tensor<4xf32>
// CHECK-NEXT: %[[B:.*]] = prim.broadcast %[[S]] {dims = [1]} : tensor<8x4xf32>
// CHECK-NEXT: %[[Y:.*]] = prim.mul %x, %[[B]] : tensor<8x4xf32>
// CHECK-NEXT: func.return %[[Y]]
func.func @shared(%x: tensor<8x4xf32>, %w: tensor<4xf32>) -> tensor<8x4xf32> {
  %y = autodiff.batch %x, %w {mapped = [0, none], size = 8, randomness = "error"} ({
  ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
    %s = prim.sin %b : tensor<4xf32>
    %c = prim.mul %a, %s : tensor<4xf32>
    autodiff.yield %c
  }) : tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}

// A dimension that is not the first moves to the front; dims of a reduction are one further.
// CHECK-LABEL: @reduced
// CHECK-NEXT: %[[T:.*]] = prim.transpose %x {perm = [1, 0]} : tensor<8x4xf32>
// CHECK-NEXT: %[[R:.*]] = prim.reduce %[[T]] {kind = "add", dims = [1]} : tensor<8xf32>
// CHECK-NEXT: func.return %[[R]]
func.func @reduced(%x: tensor<4x8xf32>) -> tensor<8xf32> {
  %y = autodiff.batch %x {mapped = [1], size = 8, randomness = "error"} ({
  ^bb0(%a: tensor<4xf32>):
    %c = prim.reduce %a {kind = "add", dims = [0]} : tensor<f32>
    autodiff.yield %c
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// A gradient in the body is expanded there, per example.
// CHECK-LABEL: @gradient
// CHECK-NOT: autodiff
// CHECK: prim.cos %x : tensor<8xf32>
func.func @gradient(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = autodiff.batch %x {mapped = [0], size = 8, randomness = "error"} ({
  ^bb0(%a: tensor<f32>):
    %c = prim.sin %a : tensor<f32>
    %g = autodiff.vjp %c, %a {outs = 1, ins = 1, seeds = [none], create_graph = true, present = [0]} : tensor<f32>
    autodiff.yield %g
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}
