// RUN: isthmus-opt %s -p fuse | filecheck %s
// ROW: I3
// ROW: I4

// Arithmetic is computed where it is used: one body, one load, no buffer for floor and ceil. The three dims are one walk.
// CHECK-LABEL: @floor_plus_ceil
// CHECK:       kernel.fused %{{.*}} {sizes = [<"524288*s0">], classes = ["parallel"], symbols = ["s0"]} ({
// CHECK-NEXT:    %[[X:.*]] = kernel.load {operand = 0,
// CHECK-NEXT:    %[[C:.*]] = prim.ceil %[[X]] : f32
// CHECK-NEXT:    %[[F:.*]] = prim.floor %[[X]] : f32
// CHECK-NEXT:    %[[S:.*]] = prim.add %[[F]], %[[C]] : f32
// CHECK-NEXT:    kernel.store %[[S]]
// CHECK-NEXT:  })
// CHECK-NEXT:  func.return
func.func @floor_plus_ceil(%x: tensor<?x512x1024xf32, #isthmus.lit<[<"s0">, 512, 1024]>>) -> tensor<?x512x1024xf32, #isthmus.lit<[<"s0">, 512, 1024]>> {
  %f = prim.floor %x : tensor<?x512x1024xf32, #isthmus.lit<[<"s0">, 512, 1024]>>
  %c = prim.ceil %x : tensor<?x512x1024xf32, #isthmus.lit<[<"s0">, 512, 1024]>>
  %s = prim.add %f, %c : tensor<?x512x1024xf32, #isthmus.lit<[<"s0">, 512, 1024]>>
  func.return %s : tensor<?x512x1024xf32, #isthmus.lit<[<"s0">, 512, 1024]>>
}

// What a sum reads is not materialised, the sum is.
// CHECK-LABEL: @floor_inside_a_sum
// CHECK:       kernel.fused %{{.*}} {sizes = [64, 32], classes = ["parallel", "row"]} ({
// CHECK-NEXT:    kernel.load
// CHECK-NEXT:    prim.floor
// CHECK-NEXT:    kernel.reduce %{{.*}} {kind = "add", dims = [1]} : f32
// CHECK-NEXT:    kernel.store %{{.*}} {result = 0, map = [d0]}
// CHECK-NEXT:  }) : tensor<64xf32>
func.func @floor_inside_a_sum(%x: tensor<64x32xf32>) -> tensor<64xf32> {
  %f = prim.floor %x : tensor<64x32xf32>
  %s = prim.reduce %f {kind = "add", dims = [1]} : tensor<64xf32>
  func.return %s : tensor<64xf32>
}

// Views are maps: nothing is copied, neighbouring dims stay one walk where every access allows it.
// CHECK-LABEL: @views
// CHECK:       kernel.fused %{{.*}} {sizes = [3, 32], classes = ["parallel", "parallel"]} ({
// CHECK-NEXT:    kernel.load {operand = 0, map = [d0, d1 floordiv 8, d1 mod 8]} : f32
// CHECK-NEXT:    prim.exp
// CHECK-NEXT:    kernel.store %{{.*}} {result = 0, map = [d1, d0]}
func.func @views(%x: tensor<3x4x8xf32>) -> tensor<32x3xf32> {
  %r = prim.reshape %x : tensor<3x32xf32>
  %t = prim.transpose %r {perm = [1, 0]} : tensor<32x3xf32>
  %e = prim.exp %t : tensor<32x3xf32>
  func.return %e : tensor<32x3xf32>
}

// A pad is a predicated load with unit stride.
// CHECK-LABEL: @pad
// CHECK:       %[[I:.*]] = kernel.index {map = [d0 - 2]} : i64
// CHECK:       %[[P:.*]] = prim.cmp %[[I]], %{{.*}} {predicate = "ge"} : i1
// CHECK:       %[[V:.*]] = kernel.load %[[P]] {operand = 0, map = [d0 - 2], default = 0.0} : f32
// CHECK:       prim.select %[[P]], %[[V]], %{{.*}} : f32
func.func @pad(%x: tensor<6xf32>) -> tensor<8xf32> {
  %p = prim.pad %x {dim = 0, low = 2, high = 0, interior = 0, value = 1.0} : tensor<8xf32>
  func.return %p : tensor<8xf32>
}

// Positions that are computed, not data, need neither a check nor a gather.
// CHECK-LABEL: @gather_at_positions
// CHECK-NOT:   kernel.check
// CHECK:       kernel.load {operand = 0, map = [d0 + 2]} : f32
func.func @gather_at_positions(%x: tensor<6xf32>) -> tensor<4xf32> {
  %i = prim.iota {dim = 0} : tensor<4xi64>
  %two = prim.const {value = 2} : tensor<4xi64>
  %j = prim.add %i, %two : tensor<4xi64>
  %g = prim.gather %x, %j {dims = [0]} : tensor<4xf32>
  func.return %g : tensor<4xf32>
}

// Indices that are data are checked once and then trusted.
// CHECK-LABEL: @embedding
// CHECK:       kernel.fused %{{.*}}, %{{.*}} {sizes = [7, 16],
// CHECK-NEXT:    %[[I:.*]] = kernel.load {operand = 0, map = [d0]} : i64
// CHECK-NEXT:    %[[C:.*]] = kernel.check %[[I]] {bound = 50, dim = 0} : i64
// CHECK-NEXT:    kernel.load %[[C]] {operand = 1, map = [v0, d1]} : f32
func.func @embedding(%w: tensor<50x16xf32>, %i: tensor<7xi64>) -> tensor<7x16xf32> {
  %g = prim.gather %w, %i {dims = [0]} : tensor<7x16xf32>
  func.return %g : tensor<7x16xf32>
}
