// RUN: isthmus-opt %s -p "schedule" | filecheck %s

// The first walk waits for memory and a later one has functions to compute: that one asks for the next row. Its vectors
// are two at once, one after the other as in any chain of functions.

// CHECK-LABEL: func.func @log_of_sum
// CHECK: width = 32, unroll = 1, ahead = 1
func.func @log_of_sum(%x: tensor<512x4096xf32>) -> tensor<512xf32> {
  %y = kernel.fused %x {sizes = [512, 4096], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %m = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %m : f32
    %e = prim.exp %d : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %l = prim.log %s : f32
    kernel.store %l {result = 0, map = [d0]}
  }) : tensor<512xf32>
  func.return %y : tensor<512xf32>
}

// CHECK-LABEL: func.func @short_rows
// CHECK: width = 32, unroll = 1
// CHECK-NOT: ahead
// CHECK: func.return
func.func @short_rows(%x: tensor<4096x512xf32>) -> tensor<4096xf32> {
  %y = kernel.fused %x {sizes = [4096, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %m = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %m : f32
    %e = prim.exp %d : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<4096xf32>
  func.return %y : tensor<4096xf32>
}

// CHECK-LABEL: func.func @few_rows_stay_in_the_cache
// CHECK-NOT: ahead
// CHECK: func.return
func.func @few_rows_stay_in_the_cache(%x: tensor<16x4096xf32>) -> tensor<16xf32> {
  %y = kernel.fused %x {sizes = [16, 4096], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %m = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %m : f32
    %e = prim.exp %d : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<16xf32>
  func.return %y : tensor<16xf32>
}

// CHECK-LABEL: func.func @nothing_to_compute_meanwhile
// CHECK-NOT: ahead
// CHECK: func.return
func.func @nothing_to_compute_meanwhile(%x: tensor<512x4096xf32>) -> tensor<512x4096xf32> {
  %y = kernel.fused %x {sizes = [512, 4096], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %m = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %m : f32
    kernel.store %d {result = 0, map = [d0, d1]}
  }) : tensor<512x4096xf32>
  func.return %y : tensor<512x4096xf32>
}

// CHECK-LABEL: func.func @the_first_walk_computes
// CHECK-NOT: ahead
// CHECK: func.return
func.func @the_first_walk_computes(%x: tensor<512x4096xf32>) -> tensor<512x4096xf32> {
  %y = kernel.fused %x {sizes = [512, 4096], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %a = prim.exp %v : f32
    %b = prim.erf %a : f32
    %c = prim.tanh %b : f32
    %s = kernel.reduce %c {kind = "add", dims = [1]} : f32
    %d = prim.sub %v, %s : f32
    %e = prim.exp %d : f32
    kernel.store %e {result = 0, map = [d0, d1]}
  }) : tensor<512x4096xf32>
  func.return %y : tensor<512x4096xf32>
}
