// RUN: isthmus-opt %s -p 'fuse{contractions=auto}' | filecheck %s
// RUN: isthmus-opt %s -p 'fuse{contractions=auto half=library}' | filecheck %s --check-prefix=LIBRARY

// In half precision a kernel of ours is worth it below the size from which it is in f32.
// CHECK-LABEL: @alone
// CHECK-NEXT:  kernel.contract
// CHECK:       @single
// CHECK-NEXT:  kernel.extern

// Where only the library uses the machine's unit for it all such products are its own.
// LIBRARY-LABEL: @alone
// LIBRARY-NEXT:  kernel.extern
func.func @alone(%x: tensor<48x200xbf16>, %w: tensor<200x72xbf16>) -> tensor<48x72xbf16> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<48x72xbf16>
  func.return %d : tensor<48x72xbf16>
}

func.func @single(%x: tensor<48x200xf32>, %w: tensor<200x72xf32>) -> tensor<48x72xf32> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<48x72xf32>
  func.return %d : tensor<48x72xf32>
}

// What makes a factor from f32 is computed where it is packed.
// CHECK-LABEL: @cast
// CHECK-NEXT:  kernel.contract
// CHECK:       prim.convert
// CHECK:       kernel.dot
// CHECK-NOT:   kernel.fused
func.func @cast(%x: tensor<48x200xbf16>, %w: tensor<200x72xf32>) -> tensor<48x72xbf16> {
  %h = prim.convert %w : tensor<200x72xbf16>
  %d = prim.dot %x, %h {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<48x72xbf16>
  func.return %d : tensor<48x72xbf16>
}
