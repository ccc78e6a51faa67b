// RUN: isthmus-opt %s -p "schedule" | filecheck %s

// A long chain of values (functions that wait for one another) works on two vectors at once; not a short one, nor functions
// that do not wait, nor one with tables of its own, nor few points, nor what is computed once a row.

// CHECK-LABEL: func.func @chain
// CHECK: width = 32, unroll = 1
func.func @chain(%x: tensor<8192xf32>) -> tensor<8192xf32> {
  %r = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<8192xf32>
  func.return %r : tensor<8192xf32>
}

// CHECK-LABEL: func.func @short
// CHECK: width = 16
func.func @short(%x: tensor<8192xf32>) -> tensor<8192xf32> {
  %r = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.sqrt %v : f32
    %b = prim.add %a, %v : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<8192xf32>
  func.return %r : tensor<8192xf32>
}

// CHECK-LABEL: func.func @tables
// CHECK: width = 16
func.func @tables(%x: tensor<8192xf32>) -> tensor<8192xf32> {
  %r = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.pow %v, %v : f32
    kernel.store %a {result = 0, map = [d0]}
  }) : tensor<8192xf32>
  func.return %r : tensor<8192xf32>
}

// CHECK-LABEL: func.func @beside
// CHECK: width = 16
func.func @beside(%x: tensor<8192xf32>) -> tensor<8192xf32> {
  %r = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %v : f32
    %c = prim.mul %a, %b : f32
    kernel.store %c {result = 0, map = [d0]}
  }) : tensor<8192xf32>
  func.return %r : tensor<8192xf32>
}

// CHECK-LABEL: func.func @few
// CHECK: width = 16
func.func @few(%x: tensor<64xf32>) -> tensor<64xf32> {
  %r = kernel.fused %x {sizes = [64], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<64xf32>
  func.return %r : tensor<64xf32>
}

// CHECK-LABEL: func.func @once_a_row
// CHECK: width = 16
func.func @once_a_row(%x: tensor<64x8192xf32>, %y: tensor<64xf32>) -> tensor<64x8192xf32> {
  %r = kernel.fused %x, %y {sizes = [64, 8192], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %w = kernel.load {operand = 1, map = [d0]} : f32
    %a = prim.tanh %w : f32
    %b = prim.exp %a : f32
    %c = prim.mul %v, %b : f32
    kernel.store %c {result = 0, map = [d0, d1]}
  }) : tensor<64x8192xf32>
  func.return %r : tensor<64x8192xf32>
}

// Columns' sums are of one vector after the other.
// CHECK-LABEL: func.func @columns
// CHECK: width = 16
func.func @columns(%x: tensor<64x8192xf32>) -> tensor<2x8192xf32> {
  %r = kernel.fused %x {sizes = [64, 8192], classes = ["parallel", "row"], partitions = 2} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %a : f32
    kernel.accumulate %b {result = 0, map = [d1], kind = "add"}
  }) : tensor<2x8192xf32>
  func.return %r : tensor<2x8192xf32>
}

// CHECK-LABEL: func.func @sums
// CHECK: width = 32, unroll = 1
func.func @sums(%x: tensor<64x8192xf32>) -> tensor<64xf32> {
  %r = kernel.fused %x {sizes = [64, 8192], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %a : f32
    %s = kernel.reduce %b {kind = "add", dims = [1]} : f32
    kernel.store %s {result = 0, map = [d0]}
  }) : tensor<64xf32>
  func.return %r : tensor<64xf32>
}
