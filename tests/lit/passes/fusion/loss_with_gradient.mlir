// RUN: isthmus-opt %s -p decompose{to=elementary},simplify,fuse | filecheck %s
// RUN: isthmus-opt %s -p decompose{to=elementary},simplify,fuse{target=gpu} | filecheck %s

// A loss and its gradient read the logits once, though the gradient needs the number of rows that count, which is the
// denominator of the loss too: it is summed beforehand, and what lies between (the log-sums) is taken along.
// CHECK:       kernel.fused %t {sizes = [64], classes = ["row"]
// CHECK:       kernel.reduce
// CHECK:       kernel.fused %z, %{{.*}}, %t {sizes = [64, 1000], classes = ["parallel", "row"]
// CHECK:       %[[Z:.*]] = kernel.load {operand = 0, map = [d0, d1]} : f32
// CHECK:       kernel.reduce %[[Z]] {kind = "max"
// CHECK:       kernel.reduce %{{.*}} {kind = "add"
// CHECK-NOT:   kernel.load {operand = 0
// CHECK:       kernel.store %{{.*}} {result = 0, map = [d0]}
// CHECK:       kernel.store %{{.*}} {result = 1, map = [d0, d1]}
// CHECK:       kernel.fused
// CHECK:       kernel.check
// CHECK-NOT:   kernel.fused
func.func @step(%z: tensor<64x1000xf32>, %t: tensor<64xi64>) -> (tensor<f32>, tensor<64x1000xf32>) {
  %loss, %lse = prim.cross_entropy %z, %t {ignore = -100} : tensor<64xf32>, tensor<64xf32>
  %ignored = prim.const {value = -100} : tensor<64xi64>
  %counted = prim.cmp %t, %ignored {predicate = "ne"} : tensor<64xi1>
  %zero = prim.const {value = 0.0} : tensor<64xf32>
  %held = prim.select %counted, %loss, %zero : tensor<64xf32>
  %ones = prim.convert %counted : tensor<64xf32>
  %sum = prim.reduce %held {kind = "add", dims = [0]} : tensor<f32>
  %count = prim.reduce %ones {kind = "add", dims = [0]} : tensor<f32>
  %mean = prim.div %sum, %count : tensor<f32>
  %one = prim.const {value = 1.0} : tensor<f32>
  %share = prim.div %one, %count : tensor<f32>
  %shares = prim.broadcast %share {dims = []} : tensor<64xf32>
  %weight = prim.select %counted, %shares, %zero : tensor<64xf32>
  %lses = prim.broadcast %lse {dims = [0]} : tensor<64x1000xf32>
  %d = prim.sub %z, %lses : tensor<64x1000xf32>
  %p = prim.exp %d : tensor<64x1000xf32>
  %place = prim.iota {dim = 1} : tensor<64x1000xi64>
  %wanted = prim.broadcast %t {dims = [0]} : tensor<64x1000xi64>
  %hit = prim.cmp %place, %wanted {predicate = "eq"} : tensor<64x1000xi1>
  %weights = prim.broadcast %weight {dims = [0]} : tensor<64x1000xf32>
  %a = prim.mul %p, %weights : tensor<64x1000xf32>
  %zeros = prim.const {value = 0.0} : tensor<64x1000xf32>
  %b = prim.select %hit, %weights, %zeros : tensor<64x1000xf32>
  %g = prim.sub %a, %b : tensor<64x1000xf32>
  func.return %mean, %g : tensor<f32>, tensor<64x1000xf32>
}
