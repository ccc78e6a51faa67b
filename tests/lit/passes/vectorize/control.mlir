// RUN: isthmus-opt %s -p vectorize | filecheck %s

// A predicate of each example's own: both branches, then a choice.
// CHECK-LABEL: @choice
// CHECK-NEXT: %[[S:.*]] = prim.sin %x : tensor<8xf32>
// CHECK-NEXT: %[[N:.*]] = prim.neg %x : tensor<8xf32>
// CHECK-NEXT: %[[C:.*]] = prim.select %p, %[[S]], %[[N]] : tensor<8xf32>
// CHECK-NEXT: func.return %[[C]]
func.func @choice(%p: tensor<8xi1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %y = autodiff.batch %p, %x {mapped = [0, 0], size = 8, randomness = "error"} ({
  ^bb0(%q: tensor<i1>, %a: tensor<f32>):
    %c = prim.cond %q, %a ({
    ^bb1(%b: tensor<f32>):
      %s = prim.sin %b : tensor<f32>
      prim.yield %s
    }, {
    ^bb2(%b: tensor<f32>):
      %n = prim.neg %b : tensor<f32>
      prim.yield %n
    }) : tensor<f32>
    autodiff.yield %c
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// A loop that examples leave at different times goes on until the last has left; those that have keep their values.
// CHECK-LABEL: @until
// CHECK-NEXT: prim.while %x {carried = 1} ({
// CHECK: %[[GOING:.*]] = prim.cmp {{.*}} {predicate = "lt"} : tensor<8xi1>
// CHECK-NEXT: %[[ANY:.*]] = prim.reduce %[[GOING]] {kind = "or", dims = [0]} : tensor<i1>
// CHECK-NEXT: prim.yield %[[ANY]]
// CHECK: %[[STILL:.*]] = prim.cmp {{.*}} {predicate = "lt"} : tensor<8xi1>
// CHECK: %[[NEXT:.*]] = prim.add
// CHECK-NEXT: %[[KEPT:.*]] = prim.select %[[STILL]], %[[NEXT]], {{.*}} : tensor<8xf32>
// CHECK-NEXT: prim.yield %[[KEPT]]
func.func @until(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = autodiff.batch %x {mapped = [0], size = 8, randomness = "error"} ({
  ^bb0(%a: tensor<f32>):
    %w = prim.while %a {carried = 1} ({
    ^bb1(%b: tensor<f32>):
      %end = prim.const {value = 9.0} : tensor<f32>
      %p = prim.cmp %b, %end {predicate = "lt"} : tensor<i1>
      prim.yield %p
    }, {
    ^bb2(%b: tensor<f32>):
      %d = prim.add %b, %b : tensor<f32>
      prim.yield %d
    }) : tensor<f32>
    autodiff.yield %w
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// Chunks are the steps of a loop; the two examples that are left come after it.
// CHECK-LABEL: @chunks
// CHECK: prim.scan {{.*}} {carried = 0, scanned = 1, reverse = false} ({
// CHECK: prim.sin {{.*}} : tensor<3xf32>
// CHECK: }) : tensor<2x3xf32>
// CHECK: prim.sin {{.*}} : tensor<2xf32>
// CHECK: prim.concat {{.*}} {dim = 0} : tensor<8xf32>
func.func @chunks(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = autodiff.batch %x {mapped = [0], size = 8, randomness = "error", chunk = 3} ({
  ^bb0(%a: tensor<f32>):
    %s = prim.sin %a : tensor<f32>
    autodiff.yield %s
  }) : tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// A gradient by what is computed outside: its pullback is what runs for each example.
// CHECK-LABEL: @rows
// CHECK-NEXT: prim.sin %x : tensor<4xf32>
// CHECK-NEXT: %[[C:.*]] = prim.cos %x : tensor<4xf32>
// CHECK-NEXT: %[[B:.*]] = prim.broadcast %[[C]] {dims = [1]} : tensor<5x4xf32>
// CHECK-NEXT: %[[G:.*]] = prim.mul %basis, %[[B]] : tensor<5x4xf32>
// CHECK-NEXT: func.return %[[G]]
func.func @rows(%x: tensor<4xf32>, %basis: tensor<5x4xf32>) -> tensor<5x4xf32> {
  %s = prim.sin %x : tensor<4xf32>
  %g = autodiff.batch %basis, %s, %x {mapped = [0, none, none], size = 5, randomness = "error"} ({
  ^bb0(%e: tensor<4xf32>, %out: tensor<4xf32>, %in: tensor<4xf32>):
    %v = autodiff.vjp %out, %in, %e {outs = 1, ins = 1, seeds = [arg2], create_graph = true, present = [0]} : tensor<4xf32>
    autodiff.yield %v
  }) : tensor<5x4xf32>
  func.return %g : tensor<5x4xf32>
}
