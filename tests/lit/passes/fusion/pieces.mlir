// RUN: isthmus-opt %s -p fuse | filecheck %s

// A concatenation of equal pieces that is returned is written by the points of one piece: nothing is selected.
// CHECK-LABEL: @equal_pieces
// CHECK:       kernel.fused %{{.*}}, %{{.*}} {sizes = [2, 4], classes = ["parallel", "parallel"]} ({
// CHECK-NOT:     prim.select
// CHECK:         kernel.store %{{.*}} {result = 0, map = [d0, d1]}
// CHECK:         kernel.store %{{.*}} {result = 0, map = [d0, d1 + 4]}
// CHECK-NEXT:  }) : tensor<2x8xf32>
func.func @equal_pieces(%x: tensor<2x4xf32>, %y: tensor<2x4xf32>) -> tensor<2x8xf32> {
  %e = prim.exp %x : tensor<2x4xf32>
  %c = prim.concat %e, %y {dim = 1} : tensor<2x8xf32>
  func.return %c : tensor<2x8xf32>
}

// What a piece needs and somebody else too is computed once, in the same kernel.
// CHECK-LABEL: @shared
// CHECK:       kernel.fused
// CHECK:         prim.exp
// CHECK-NOT:     prim.exp
// CHECK:       }) : tensor<2x4xf32>, tensor<2x8xf32>
// CHECK-NOT:   kernel.fused
func.func @shared(%x: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x8xf32>) {
  %e = prim.exp %x : tensor<2x4xf32>
  %n = prim.neg %e : tensor<2x4xf32>
  %c = prim.concat %e, %n {dim = 1} : tensor<2x8xf32>
  func.return %e, %c : tensor<2x4xf32>, tensor<2x8xf32>
}

// Pieces of different sizes have no common points.
// CHECK-LABEL: @unequal_pieces
// CHECK:       prim.select
// CHECK-NEXT:  kernel.store
func.func @unequal_pieces(%x: tensor<2x4xf32>, %y: tensor<2x3xf32>) -> tensor<2x7xf32> {
  %c = prim.concat %x, %y {dim = 1} : tensor<2x7xf32>
  func.return %c : tensor<2x7xf32>
}

// Without a buffer of its own it is computed where it is read.
// CHECK-LABEL: @no_buffer
// CHECK:       prim.select
// CHECK:       prim.add
// CHECK-NEXT:  kernel.store
// CHECK-NOT:   kernel.fused
func.func @no_buffer(%x: tensor<2x4xf32>, %y: tensor<2x4xf32>, %z: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %c = prim.concat %x, %y {dim = 1} : tensor<2x8xf32>
  %s = prim.add %c, %z : tensor<2x8xf32>
  func.return %s : tensor<2x8xf32>
}

// Its sums over points are taken while the pieces are written: each at its own place among the partial results.
// CHECK-LABEL: @summed_pieces
// CHECK:       kernel.fused %{{.*}}, %{{.*}} {sizes = [2048, 64], classes = ["parallel", "row"]
// CHECK:         kernel.store %{{.*}} {result = 0, map = [d0, d1]}
// CHECK:         kernel.store %{{.*}} {result = 0, map = [d0, d1 + 64]}
// CHECK:         kernel.accumulate %{{.*}} {result = 1, map = [d1], kind = "add"}
// CHECK-NEXT:    kernel.accumulate %{{.*}} {result = 1, map = [d1 + 64], kind = "add"}
// CHECK-NEXT:  }) : tensor<2048x128xf32>, tensor<[[P:[0-9]+]]x128xf32>
// CHECK:       kernel.fused %{{.*}} {sizes = [128, [[P]]]
func.func @summed_pieces(%x: tensor<2048x64xf32>, %y: tensor<2048x64xf32>) -> (tensor<2048x128xf32>, tensor<128xf32>) {
  %e = prim.exp %x : tensor<2048x64xf32>
  %c = prim.concat %e, %y {dim = 1} : tensor<2048x128xf32>
  %s = prim.reduce %c {kind = "add", dims = [0]} : tensor<128xf32>
  func.return %c, %s : tensor<2048x128xf32>, tensor<128xf32>
}
