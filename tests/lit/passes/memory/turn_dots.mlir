// RUN: isthmus-opt %s -p 'turn-dots{least=64}' | filecheck %s

// CHECK-LABEL: @gradient
// CHECK-NEXT:    [[D:%\w+]] = prim.dot %dy, %x {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<8x4xf32>
// CHECK-NEXT:    func.return [[D]]
func.func @gradient(%x: tensor<6x4xf32>, %dy: tensor<6x8xf32>) -> tensor<8x4xf32> {
  %d = prim.dot %x, %dy {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x8xf32>
  %t = prim.transpose %d {perm = [1, 0]} : tensor<8x4xf32>
  func.return %t : tensor<8x4xf32>
}

// Not where the product is wanted as it is, too, nor where it is small.
// CHECK-LABEL: @both
// CHECK:         prim.transpose
func.func @both(%x: tensor<6x4xf32>, %dy: tensor<6x8xf32>) -> (tensor<8x4xf32>, tensor<4x8xf32>) {
  %d = prim.dot %x, %dy {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x8xf32>
  %t = prim.transpose %d {perm = [1, 0]} : tensor<8x4xf32>
  func.return %t, %d : tensor<8x4xf32>, tensor<4x8xf32>
}

// CHECK-LABEL: @small
// CHECK:         prim.transpose
func.func @small(%x: tensor<6x2xf32>, %dy: tensor<6x2xf32>) -> tensor<2x2xf32> {
  %d = prim.dot %x, %dy {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<2x2xf32>
  %t = prim.transpose %d {perm = [1, 0]} : tensor<2x2xf32>
  func.return %t : tensor<2x2xf32>
}
