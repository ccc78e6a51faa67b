// RUN: isthmus-opt %s -p fold-into-conv | filecheck %s
// ROW: I10, I2

// Normalization by running statistics, its weight and bias: one convolution and one shift are left.
// CHECK-LABEL: @batch_norm
// CHECK-DAG:   %[[S:.*]] = prim.mul %rstd, %gamma : tensor<8xf32>
// CHECK-DAG:   %[[R:.*]] = prim.broadcast %[[S]] {dims = [0]} : tensor<8x3x3x3xf32>
// CHECK-DAG:   %[[V:.*]] = prim.mul %w, %[[R]] : tensor<8x3x3x3xf32>
// CHECK:       %[[Y:.*]] = prim.conv %x, %[[V]]
// CHECK-NEXT:  %[[B:.*]] = prim.broadcast %{{.*}} {dims = [1]} : tensor<2x8x14x14xf32>
// CHECK-NEXT:  %[[Z:.*]] = prim.add %[[Y]], %[[B]] : tensor<2x8x14x14xf32>
// CHECK-NEXT:  func.return %[[Z]]
func.func @batch_norm(%x: tensor<2x3x16x16xf32>, %w: tensor<8x3x3x3xf32>, %mean: tensor<8xf32>, %rstd: tensor<8xf32>, %gamma: tensor<8xf32>, %beta: tensor<8xf32>) -> tensor<2x8x14x14xf32> {
  %y = prim.conv %x, %w {strides = [1, 1], padding = [0, 0], dilations = [1, 1], groups = 1} : tensor<2x8x14x14xf32>
  %m = prim.broadcast %mean {dims = [1]} : tensor<2x8x14x14xf32>
  %c = prim.sub %y, %m : tensor<2x8x14x14xf32>
  %r = prim.broadcast %rstd {dims = [1]} : tensor<2x8x14x14xf32>
  %h = prim.mul %c, %r : tensor<2x8x14x14xf32>
  %g = prim.broadcast %gamma {dims = [1]} : tensor<2x8x14x14xf32>
  %a = prim.mul %g, %h : tensor<2x8x14x14xf32>
  %b = prim.broadcast %beta {dims = [1]} : tensor<2x8x14x14xf32>
  %z = prim.add %a, %b : tensor<2x8x14x14xf32>
  func.return %z : tensor<2x8x14x14xf32>
}

// Stays: a bias alone has no scale.
// CHECK-LABEL: @bias_alone
// CHECK:       prim.conv %x, %w
// CHECK:       prim.add
func.func @bias_alone(%x: tensor<2x3x16x16xf32>, %w: tensor<8x3x3x3xf32>, %beta: tensor<8xf32>) -> tensor<2x8x14x14xf32> {
  %y = prim.conv %x, %w {strides = [1, 1], padding = [0, 0], dilations = [1, 1], groups = 1} : tensor<2x8x14x14xf32>
  %b = prim.broadcast %beta {dims = [1]} : tensor<2x8x14x14xf32>
  %z = prim.add %y, %b : tensor<2x8x14x14xf32>
  func.return %z : tensor<2x8x14x14xf32>
}

// Stays: somebody else reads the convolution.
// CHECK-LABEL: @read_elsewhere
// CHECK:       %[[Y:.*]] = prim.conv %x, %w
// CHECK:       %[[Z:.*]] = prim.mul %[[Y]]
// CHECK-NEXT:  func.return %[[Y]], %[[Z]]
func.func @read_elsewhere(%x: tensor<2x3x16x16xf32>, %w: tensor<8x3x3x3xf32>, %s: tensor<8xf32>) -> (tensor<2x8x14x14xf32>, tensor<2x8x14x14xf32>) {
  %y = prim.conv %x, %w {strides = [1, 1], padding = [0, 0], dilations = [1, 1], groups = 1} : tensor<2x8x14x14xf32>
  %b = prim.broadcast %s {dims = [1]} : tensor<2x8x14x14xf32>
  %z = prim.mul %y, %b : tensor<2x8x14x14xf32>
  func.return %y, %z : tensor<2x8x14x14xf32>, tensor<2x8x14x14xf32>
}

// Stays: the scale belongs to another dim, or the result is subtracted.
// CHECK-LABEL: @another_dim
// CHECK:       prim.conv %x, %w
// CHECK:       prim.mul
// CHECK-LABEL: @subtracted
// CHECK:       prim.conv %x, %w
// CHECK:       prim.sub
// CHECK-NEXT:  prim.mul
func.func @another_dim(%x: tensor<8x3x16x16xf32>, %w: tensor<8x3x3x3xf32>, %s: tensor<8xf32>) -> tensor<8x8x14x14xf32> {
  %y = prim.conv %x, %w {strides = [1, 1], padding = [0, 0], dilations = [1, 1], groups = 1} : tensor<8x8x14x14xf32>
  %b = prim.broadcast %s {dims = [0]} : tensor<8x8x14x14xf32>
  %z = prim.mul %y, %b : tensor<8x8x14x14xf32>
  func.return %z : tensor<8x8x14x14xf32>
}
func.func @subtracted(%x: tensor<2x3x16x16xf32>, %w: tensor<8x3x3x3xf32>, %s: tensor<8xf32>) -> tensor<2x8x14x14xf32> {
  %y = prim.conv %x, %w {strides = [1, 1], padding = [0, 0], dilations = [1, 1], groups = 1} : tensor<2x8x14x14xf32>
  %b = prim.broadcast %s {dims = [1]} : tensor<2x8x14x14xf32>
  %d = prim.sub %b, %y : tensor<2x8x14x14xf32>
  %z = prim.mul %d, %b : tensor<2x8x14x14xf32>
  func.return %z : tensor<2x8x14x14xf32>
}
