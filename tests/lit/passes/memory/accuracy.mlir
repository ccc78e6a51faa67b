// RUN: isthmus-opt %s -p schedule-gpu | filecheck %s

// What ends in half precision may take the coarse forms.
// CHECK-LABEL: @half
// CHECK:       prim.exp %{{.*}} {accuracy = "half"{{.*}}} : f32
// CHECK:       prim.div %{{.*}} {accuracy = "half"} : f32
func.func @half(%x: tensor<64x512xf32>) -> tensor<64x512xbf16> {
  %y = kernel.fused %x {sizes = [64, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %e = prim.exp %v : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %q = prim.div %e, %s : f32
    %h = prim.convert %q : bf16
    kernel.store %h {result = 0, map = [d0, d1]}
  }) : tensor<64x512xbf16>
  func.return %y : tensor<64x512xbf16>
}

// A logarithm of a sum shows its digits, unless its terms had few; a stored f32 has all of them.
// CHECK-LABEL: @whole
// CHECK-NOT:   accuracy
// CHECK:       prim.log
// CHECK-LABEL: @few
// CHECK:       prim.exp %{{.*}} {accuracy = "half"} : f32
// CHECK-NEXT:  kernel.reduce
// CHECK:       prim.exp %{{[^{]*}} : f32
func.func @whole(%x: tensor<64x512xf32>) -> tensor<64xf32> {
  %y = kernel.fused %x {sizes = [64, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %e = prim.exp %v : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %l = prim.log %s : f32
    kernel.store %l {result = 0, map = [d0]}
  }) : tensor<64xf32>
  func.return %y : tensor<64xf32>
}
func.func @few(%x: tensor<64x512xbf16>) -> (tensor<64xf32>, tensor<64x512xf32>) {
  %y, %z = kernel.fused %x {sizes = [64, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : bf16
    %f = prim.convert %v : f32
    %e = prim.exp %f : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %l = prim.log %s : f32
    %n = prim.neg %f : f32
    %w = prim.exp %n : f32
    kernel.store %l {result = 0, map = [d0]}
    kernel.store %w {result = 1, map = [d0, d1]}
  }) : tensor<64xf32>, tensor<64x512xf32>
  func.return %y, %z : tensor<64xf32>, tensor<64x512xf32>
}
