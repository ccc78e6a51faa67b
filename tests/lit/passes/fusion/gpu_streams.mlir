// RUN: isthmus-opt %s -p 'fuse{target=gpu}' | filecheck %s

// Updates of large tensors share a number alone: no two of different shapes are one kernel.
// CHECK-LABEL: @shapes
// CHECK:       kernel.fused %a, %p, %q {
// CHECK:       kernel.fused %a, %r {
// CHECK-NOT:   kernel.fused
func.func @shapes(%a: tensor<f32>, %p: tensor<1024x1024xf32>, %q: tensor<1024x1024xf32>, %r: tensor<512x2048xf32>)
    -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<512x2048xf32>) {
  %s = prim.broadcast %a {dims = []} : tensor<1024x1024xf32>
  %t = prim.broadcast %a {dims = []} : tensor<512x2048xf32>
  %x = prim.mul %p, %s : tensor<1024x1024xf32>
  %y = prim.mul %q, %s : tensor<1024x1024xf32>
  %z = prim.mul %r, %t : tensor<512x2048xf32>
  func.return %x, %y, %z : tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<512x2048xf32>
}

// Eight tensors read at once are enough.
// CHECK-LABEL: @many
// CHECK:       kernel.fused
// CHECK:       kernel.fused
// CHECK-NOT:   kernel.fused
func.func @many(%a: tensor<f32>, %p: tensor<1024x1024xf32>, %q: tensor<1024x1024xf32>, %r: tensor<1024x1024xf32>,
    %t: tensor<1024x1024xf32>, %u: tensor<1024x1024xf32>, %v: tensor<1024x1024xf32>, %w: tensor<1024x1024xf32>,
    %b: tensor<1024x1024xf32>, %c: tensor<1024x1024xf32>, %d: tensor<1024x1024xf32>)
    -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
  %s = prim.broadcast %a {dims = []} : tensor<1024x1024xf32>
  %1 = prim.add %p, %q : tensor<1024x1024xf32>
  %x1 = prim.mul %1, %s : tensor<1024x1024xf32>
  %2 = prim.add %r, %t : tensor<1024x1024xf32>
  %x2 = prim.mul %2, %s : tensor<1024x1024xf32>
  %3 = prim.add %u, %v : tensor<1024x1024xf32>
  %x3 = prim.mul %3, %s : tensor<1024x1024xf32>
  %4 = prim.add %w, %b : tensor<1024x1024xf32>
  %x4 = prim.mul %4, %s : tensor<1024x1024xf32>
  %5 = prim.add %c, %d : tensor<1024x1024xf32>
  %x5 = prim.mul %5, %s : tensor<1024x1024xf32>
  func.return %x1, %x2, %x3, %x4, %x5 : tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>
}

// Small ones are one launch.
// CHECK-LABEL: @small
// CHECK-COUNT-1: kernel.fused
// CHECK-NOT:   kernel.fused
func.func @small(%a: tensor<f32>, %p: tensor<64x64xf32>, %q: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %s = prim.broadcast %a {dims = []} : tensor<64x64xf32>
  %x = prim.mul %p, %s : tensor<64x64xf32>
  %y = prim.mul %q, %s : tensor<64x64xf32>
  func.return %x, %y : tensor<64x64xf32>, tensor<64x64xf32>
}
