// RUN: isthmus-opt %s -p 'fuse{target=gpu contractions=own}' | filecheck %s
// RUN: isthmus-opt %s -p 'fuse{target=gpu contractions=joined}' | filecheck %s --check-prefix JOINED
// RUN: isthmus-opt %s -p 'fuse{target=gpu}' | filecheck %s --check-prefix LIBRARY

// LIBRARY-NOT: kernel.contract

// JOINED-LABEL: @epilogue
// JOINED-NEXT:  kernel.contract
// JOINED-LABEL: @alone
// JOINED-NOT:   kernel.contract

// A product in half precision is a kernel, what reads it its epilogue; its sum over rows in as many parts as tiles.
// CHECK-LABEL: @epilogue
// CHECK-NEXT:  kernel.contract %{{.*}} {sizes = [2048, 256, 128], classes = ["m", "n", "k"], {{.*}}} ({
// CHECK:         %[[D:.*]] = kernel.dot %{{.*}}, %{{.*}} {dims = [2]} : bf16
// CHECK:         prim.tanh
// CHECK-DAG:     kernel.accumulate
// CHECK-DAG:     kernel.store
func.func @epilogue(%x: tensor<2048x128xbf16>, %w: tensor<256x128xbf16>) -> (tensor<2048x256xbf16>, tensor<256xf32>) {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<2048x256xbf16>
  %c = prim.convert %d : tensor<2048x256xf32>
  %t = prim.tanh %c : tensor<2048x256xf32>
  %s = prim.reduce %t {kind = "add", dims = [0]} : tensor<256xf32>
  %y = prim.convert %t : tensor<2048x256xbf16>
  func.return %y, %s : tensor<2048x256xbf16>, tensor<256xf32>
}

// One with nothing around it is a kernel, too.
// CHECK-LABEL: @alone
// CHECK-NEXT:  kernel.contract
func.func @alone(%x: tensor<64x128xf16>, %w: tensor<128x64xf16>) -> tensor<64x64xf16> {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf16>
  func.return %d : tensor<64x64xf16>
}

// What the copy engine cannot take is the library's: rows that begin anywhere, f32, factors that are computed.
// CHECK-LABEL: @library
// CHECK:       kernel.extern
// CHECK:       kernel.extern
// CHECK-NOT:   kernel.contract
func.func @library(%x: tensor<64x100xbf16>, %w: tensor<100x64xbf16>, %a: tensor<64x64xf32>)
    -> (tensor<64x64xbf16>, tensor<64x64xf32>) {
  %d = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xbf16>
  %e = prim.dot %a, %a {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x64xf32>
  func.return %d, %e : tensor<64x64xbf16>, tensor<64x64xf32>
}

// Few tiles with a long sum are the library's, which splits it; few tiles with a short one end soon.
// CHECK-LABEL: @long
// CHECK-NEXT:  kernel.extern
// CHECK-LABEL: @short
// CHECK-NEXT:  kernel.contract
func.func @long(%g: tensor<8192x768xbf16>, %x: tensor<8192x768xbf16>) -> tensor<768x768xbf16> {
  %d = prim.dot %g, %x {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<768x768xbf16>
  func.return %d : tensor<768x768xbf16>
}
func.func @short(%g: tensor<512x768xbf16>, %x: tensor<512x768xbf16>) -> tensor<768x768xbf16> {
  %d = prim.dot %g, %x {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<768x768xbf16>
  func.return %d : tensor<768x768xbf16>
}
