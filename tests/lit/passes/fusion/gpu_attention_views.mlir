// RUN: isthmus-opt %s -p 'fuse{target=gpu}' | filecheck %s

// Our own calls of attention read heads where a projection left them, and the next product reads their result so.
// CHECK-LABEL: @packed
// CHECK:       %[[P:.*]] = kernel.extern %x, %w {symbol = "prim.dot"
// CHECK-NEXT:  %[[O:.*]], %{{.*}} = kernel.extern %[[P]], %[[P]], %[[P]] {symbol = "isthmus::attention.default"
// CHECK-SAME:    views = {{\[\[\[}}2, 4, 64, 16], [12288, 16, 192, 1], 0], {{\[\[}}2, 4, 64, 16], [12288, 16, 192, 1], 64]
// CHECK-SAME:    layouts = {{\[\[}}4096, 16, 64, 1]
// CHECK-NEXT:  kernel.extern %[[O]], %v {symbol = "prim.dot"
// CHECK-NOT:   kernel.fused
func.func @packed(%x: tensor<2x64x64xbf16>, %w: tensor<192x64xbf16>, %v: tensor<64x64xbf16>) -> tensor<2x64x64xbf16> {
  %p = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [2], contract_b = [1]} : tensor<2x64x192xbf16>
  %q1 = prim.slice %p {dim = 2, start = 0, limit = 64, stride = 1} : tensor<2x64x64xbf16>
  %k1 = prim.slice %p {dim = 2, start = 64, limit = 128, stride = 1} : tensor<2x64x64xbf16>
  %v1 = prim.slice %p {dim = 2, start = 128, limit = 192, stride = 1} : tensor<2x64x64xbf16>
  %q2 = prim.reshape %q1 : tensor<2x64x4x16xbf16>
  %k2 = prim.reshape %k1 : tensor<2x64x4x16xbf16>
  %v2 = prim.reshape %v1 : tensor<2x64x4x16xbf16>
  %q3 = prim.transpose %q2 {perm = [0, 2, 1, 3]} : tensor<2x4x64x16xbf16>
  %k3 = prim.transpose %k2 {perm = [0, 2, 1, 3]} : tensor<2x4x64x16xbf16>
  %v3 = prim.transpose %v2 {perm = [0, 2, 1, 3]} : tensor<2x4x64x16xbf16>
  %o, %l = prim.opaque %q3, %k3, %v3 {callee = "isthmus::attention.default", args = [arg0, arg1, arg2, true, 0.25]} : tensor<2x4x64x16xbf16>, tensor<2x4x64xf32>
  %t = prim.transpose %o {perm = [0, 2, 1, 3]} : tensor<2x64x4x16xbf16>
  %r = prim.reshape %t : tensor<2x64x64xbf16>
  %y = prim.dot %r, %v {batch_a = [], batch_b = [], contract_a = [2], contract_b = [1]} : tensor<2x64x64xbf16>
  func.return %y : tensor<2x64x64xbf16>
}
