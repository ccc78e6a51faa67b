// RUN: isthmus-opt %s -p group-dots | filecheck %s
// ROW: I2

// Three narrow layers on one input.
// CHECK-LABEL: @layers
// CHECK-NEXT:  %[[W:.*]] = prim.concat %u, %v, %w {dim = 0} : tensor<24x64xf32>
// CHECK-NEXT:  %[[D:.*]] = prim.dot %x, %[[W]] {{.*}} : tensor<256x24xf32>
// CHECK-NEXT:  %[[A:.*]] = prim.slice %[[D]] {dim = 1, start = 0, limit = 8, stride = 1}
// CHECK-NEXT:  %[[B:.*]] = prim.slice %[[D]] {dim = 1, start = 8, limit = 16, stride = 1}
// CHECK-NEXT:  %[[C:.*]] = prim.slice %[[D]] {dim = 1, start = 16, limit = 24, stride = 1}
// CHECK-NEXT:  %[[S:.*]] = prim.sin %[[A]]
// CHECK-NEXT:  func.return %[[S]], %[[B]], %[[C]]
func.func @layers(%x: tensor<256x64xf32>, %u: tensor<8x64xf32>, %v: tensor<8x64xf32>, %w: tensor<8x64xf32>) -> (tensor<256x8xf32>, tensor<256x8xf32>, tensor<256x8xf32>) {
  %a = prim.dot %x, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xf32>
  %s = prim.sin %a : tensor<256x8xf32>
  %b = prim.dot %x, %v {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xf32>
  %c = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xf32>
  func.return %s, %b, %c : tensor<256x8xf32>, tensor<256x8xf32>, tensor<256x8xf32>
}

// Stays: wide products, other inputs, half precision, batches.
// CHECK-LABEL: @wide
// CHECK-NOT:   prim.concat
func.func @wide(%x: tensor<256x64xf32>, %u: tensor<17x64xf32>, %v: tensor<17x64xf32>) -> (tensor<256x17xf32>, tensor<256x17xf32>) {
  %a = prim.dot %x, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x17xf32>
  %b = prim.dot %x, %v {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x17xf32>
  func.return %a, %b : tensor<256x17xf32>, tensor<256x17xf32>
}
// CHECK-LABEL: @other_inputs
// CHECK-NOT:   prim.concat
func.func @other_inputs(%x: tensor<256x64xf32>, %y: tensor<256x64xf32>, %u: tensor<8x64xf32>, %v: tensor<64x8xf32>) -> (tensor<256x8xf32>, tensor<256x8xf32>, tensor<256x8xf32>) {
  %a = prim.dot %x, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xf32>
  %b = prim.dot %y, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xf32>
  %c = prim.dot %x, %v {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<256x8xf32>
  func.return %a, %b, %c : tensor<256x8xf32>, tensor<256x8xf32>, tensor<256x8xf32>
}
// CHECK-LABEL: @half
// CHECK-NOT:   prim.concat
func.func @half(%x: tensor<256x64xbf16>, %u: tensor<8x64xbf16>, %v: tensor<8x64xbf16>) -> (tensor<256x8xbf16>, tensor<256x8xbf16>) {
  %a = prim.dot %x, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xbf16>
  %b = prim.dot %x, %v {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x8xbf16>
  func.return %a, %b : tensor<256x8xbf16>, tensor<256x8xbf16>
}
// CHECK-LABEL: @batch
// CHECK-NOT:   prim.concat
func.func @batch(%x: tensor<2x256x64xf32>, %u: tensor<2x8x64xf32>, %v: tensor<2x8x64xf32>) -> (tensor<2x256x8xf32>, tensor<2x256x8xf32>) {
  %a = prim.dot %x, %u {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<2x256x8xf32>
  %b = prim.dot %x, %v {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<2x256x8xf32>
  func.return %a, %b : tensor<2x256x8xf32>, tensor<2x256x8xf32>
}

// Stays: the second weight follows from the first product.
// CHECK-LABEL: @one_after_the_other
// CHECK-NOT:   prim.concat
// CHECK:       func.return
func.func @one_after_the_other(%x: tensor<8x8xf32>, %u: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = prim.dot %x, %u {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<8x8xf32>
  %b = prim.dot %x, %a {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<8x8xf32>
  func.return %b : tensor<8x8xf32>
}

// A product by a part of a product that was joined before.
// CHECK-LABEL: func.func @one_after_another
// CHECK: %[[B:.*]] = prim.dot %x, %{{.*}} : tensor<4x6xf32>
// CHECK: %[[Y:.*]] = prim.slice %[[B]] {dim = 1, start = 0, limit = 3, stride = 1}
// CHECK: %[[Z:.*]] = prim.slice %[[B]] {dim = 1, start = 3, limit = 6, stride = 1}
// CHECK: %[[C:.*]] = prim.concat %[[Y]], %[[Z]] {dim = 1}
// CHECK: prim.dot %u, %[[C]]
func.func @one_after_another(%x: tensor<4x5xf32>, %w: tensor<5x3xf32>, %v: tensor<5x3xf32>, %u: tensor<7x4xf32>) -> (tensor<7x3xf32> {autodiff.output}, tensor<7x3xf32> {autodiff.output}) {
  %y = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x3xf32>
  %z = prim.dot %x, %v {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<4x3xf32>
  %p = prim.dot %u, %y {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<7x3xf32>
  %q = prim.dot %u, %z {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<7x3xf32>
  func.return %p, %q : tensor<7x3xf32>, tensor<7x3xf32>
}
