// RUN: isthmus-opt %s -p 'fuse{target=gpu contractions=own tf32=true}' | filecheck %s
// RUN: isthmus-opt %s -p 'fuse{target=gpu contractions=own}' | filecheck %s --check-prefix EXACT

// EXACT-NOT: kernel.contract

// Where it is allowed, a product of f32 is a kernel that rounds its factors, with what reads it as its epilogue.
// CHECK-LABEL: @linear
// CHECK-NEXT:  kernel.contract
// CHECK:         kernel.dot %{{.*}}, %{{.*}} {dims = [2], precision = "tf32"} : f32
// CHECK:         prim.tanh
func.func @linear(%x: tensor<256x100xf32>, %w: tensor<128x100xf32>) -> tensor<256x128xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x128xf32>
  %t = prim.tanh %d : tensor<256x128xf32>
  func.return %t : tensor<256x128xf32>
}

// Factors that do not run along the terms of the sum are the library's; so are rows that begin anywhere, and f64.
// CHECK-LABEL: @others
// CHECK-NOT:   kernel.contract
func.func @others(%x: tensor<128x128xf32>, %z: tensor<64x99xf32>, %f: tensor<64x64xf64>)
    -> (tensor<128x128xf32>, tensor<128x128xf32>, tensor<64x64xf32>, tensor<64x64xf64>) {
  %a = prim.dot %x, %x {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<128x128xf32>
  %b = prim.dot %x, %x {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<128x128xf32>
  %c = prim.dot %z, %z {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<64x64xf32>
  %d = prim.dot %f, %f {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<64x64xf64>
  func.return %a, %b, %c, %d : tensor<128x128xf32>, tensor<128x128xf32>, tensor<64x64xf32>, tensor<64x64xf64>
}
