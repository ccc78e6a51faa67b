// RUN: isthmus-opt %s -p fuse | filecheck %s
// ROW: I7

// Producer, reductions and consumers are walks of one kernel: three levels, one read of x.
// CHECK-LABEL: @softmax
// CHECK:       kernel.fused %{{.*}} {sizes = [64, 32], classes = ["parallel", "row"]} ({
// CHECK-NEXT:    %[[X:.*]] = kernel.load {operand = 0, map = [d0, d1]} : f32
// CHECK-NEXT:    %[[M:.*]] = kernel.reduce %[[X]] {kind = "max", dims = [1]} : f32
// CHECK-NEXT:    %[[D:.*]] = prim.sub %[[X]], %[[M]] : f32
// CHECK-NEXT:    %[[E:.*]] = prim.exp %[[D]] : f32
// CHECK-NEXT:    %[[S:.*]] = kernel.reduce %[[E]] {kind = "add", dims = [1]} : f32
// CHECK-NEXT:    %[[Y:.*]] = prim.div %[[E]], %[[S]] : f32
// CHECK-NEXT:    kernel.store %[[Y]] {result = 0, map = [d0, d1]}
// CHECK-NEXT:  }) : tensor<64x32xf32>
// CHECK-NEXT:  func.return
func.func @softmax(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %m = prim.reduce %x {kind = "max", dims = [1]} : tensor<64xf32>
  %mb = prim.broadcast %m {dims = [0]} : tensor<64x32xf32>
  %d = prim.sub %x, %mb : tensor<64x32xf32>
  %e = prim.exp %d : tensor<64x32xf32>
  %s = prim.reduce %e {kind = "add", dims = [1]} : tensor<64xf32>
  %sb = prim.broadcast %s {dims = [0]} : tensor<64x32xf32>
  %y = prim.div %e, %sb : tensor<64x32xf32>
  func.return %y : tensor<64x32xf32>
}

// Two reductions of the same x share its read, though neither uses the other.
// CHECK-LABEL: @siblings
// CHECK:       kernel.fused
// CHECK:         kernel.reduce %{{.*}} {kind = "max", dims = [1]}
// CHECK:         kernel.reduce %{{.*}} {kind = "min", dims = [1]}
// CHECK-NOT:   kernel.fused
func.func @siblings(%x: tensor<64x32xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %m = prim.reduce %x {kind = "max", dims = [1]} : tensor<64xf32>
  %n = prim.reduce %x {kind = "min", dims = [1]} : tensor<64xf32>
  func.return %m, %n : tensor<64xf32>, tensor<64xf32>
}

// A product and the relu that reads it: the product has no buffer.
// CHECK-LABEL: @relu_after_mul
// CHECK:       kernel.fused %{{.*}}, %{{.*}} {
// CHECK:         prim.mul
// CHECK-NEXT:    prim.relu
// CHECK-NEXT:    kernel.store
// CHECK-NEXT:  }) : tensor<64x32xf32>
// CHECK-NEXT:  func.return
func.func @relu_after_mul(%x: tensor<64x32xf32>, %y: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %m = prim.mul %x, %y : tensor<64x32xf32>
  %r = prim.relu %m : tensor<64x32xf32>
  func.return %r : tensor<64x32xf32>
}

// The value at the target is computed again from x at that place; log-softmax is never written.
// CHECK-LABEL: @cross_entropy
// CHECK:       kernel.fused %{{.*}}, %{{.*}} {sizes = [64, 1000], classes = ["parallel", "row"]
// CHECK:         kernel.check %{{.*}} {bound = 1000, dim = 1} : i64
// CHECK:         kernel.load %{{.*}} {operand = {{.}}, map = [d0, v0]} : f32
// CHECK:       }) : tensor<64xf32>
// CHECK-NEXT:  func.return
func.func @cross_entropy(%x: tensor<64x1000xf32>, %t: tensor<64xi64>) -> tensor<64xf32> {
  %m = prim.reduce %x {kind = "max", dims = [1]} : tensor<64xf32>
  %mb = prim.broadcast %m {dims = [0]} : tensor<64x1000xf32>
  %d = prim.sub %x, %mb : tensor<64x1000xf32>
  %e = prim.exp %d : tensor<64x1000xf32>
  %s = prim.reduce %e {kind = "add", dims = [1]} : tensor<64xf32>
  %l = prim.log %s : tensor<64xf32>
  %lb = prim.broadcast %l {dims = [0]} : tensor<64x1000xf32>
  %logp = prim.sub %d, %lb : tensor<64x1000xf32>
  %i = prim.iota {dim = 0} : tensor<64xi64>
  %p = prim.gather %logp, %i, %t {dims = [0, 1]} : tensor<64xf32>
  %n = prim.neg %p : tensor<64xf32>
  func.return %n : tensor<64xf32>
}

// Statistics over batch and space of NCHW: channels are points, the row has two dims of which the inner two are one.
// CHECK-LABEL: @batch_statistics
// CHECK:       kernel.fused %{{.*}} {sizes = [32, 16, 49], classes = ["parallel", "row", "row"]} ({
// CHECK:         kernel.reduce %{{.*}} {kind = "add", dims = [1, 2]} : f32
// CHECK:         kernel.store %{{.*}} {result = 0, map = [d1, d0, d2 floordiv 7, d2 mod 7]}
func.func @batch_statistics(%x: tensor<16x32x7x7xf32>) -> tensor<16x32x7x7xf32> {
  %s = prim.reduce %x {kind = "add", dims = [0, 2, 3]} : tensor<32xf32>
  %b = prim.broadcast %s {dims = [1]} : tensor<16x32x7x7xf32>
  %y = prim.sub %x, %b : tensor<16x32x7x7xf32>
  func.return %y : tensor<16x32x7x7xf32>
}

// A sum down columns is partial results by partitions, in the kernel that makes what is summed, and their combination
// with what follows.
// CHECK-LABEL: @column_sum
// CHECK:       %[[Y:.*]], %[[P:.*]] = kernel.fused %{{.*}} {sizes = [2048, 256], classes = ["parallel", "row"], partitions = 16} ({
// CHECK:         kernel.store %{{.*}} {result = 0, map = [d0, d1]}
// CHECK:         kernel.accumulate %{{.*}} {result = 1, map = [d1], kind = "add"}
// CHECK:       }) : tensor<2048x256xf32>, tensor<16x256xf32>
// CHECK-NEXT:  kernel.fused %[[P]] {sizes = [256, 16], classes = ["parallel", "row"]} ({
// CHECK:         kernel.reduce
// CHECK-NEXT:    prim.neg
// CHECK-NEXT:    kernel.store
func.func @column_sum(%x: tensor<2048x256xf32>) -> (tensor<256xf32>, tensor<2048x256xf32>) {
  %e = prim.exp %x : tensor<2048x256xf32>
  %s = prim.reduce %e {kind = "add", dims = [0]} : tensor<256xf32>
  %n = prim.neg %s : tensor<256xf32>
  func.return %n, %e : tensor<256xf32>, tensor<2048x256xf32>
}
