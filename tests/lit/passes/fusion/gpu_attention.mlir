// RUN: isthmus-opt %s -p 'select-library{device=cuda}' | filecheck %s

// Half precision goes to fused kernels, also its backward, whose delta is a sum in float32.
// CHECK-LABEL: @half
// CHECK:       prim.opaque %q, %k, %v {callee = "isthmus::attention.default", args = [arg0, arg1, arg2, true, 0.25]}
// CHECK:       prim.opaque %g, %q, %k, %v, %{{.*}}, %{{.*}} {callee = "isthmus::attention_backward.default"
// CHECK-SAME:  args = [arg0, arg1, arg2, arg3, arg4, arg5, true, 0.25]}
func.func @half(%q: tensor<2x3x8x16xbf16>, %k: tensor<2x3x8x16xbf16>, %v: tensor<2x3x8x16xbf16>,
                %g: tensor<2x3x8x16xbf16>) -> (tensor<2x3x8x16xbf16>, tensor<2x3x8x16xbf16>) {
  %o, %l = prim.attention %q, %k, %v {scale = 0.25, causal = true} : tensor<2x3x8x16xbf16>, tensor<2x3x8xf32>
  %wg = prim.convert %g : tensor<2x3x8x16xf32>
  %wo = prim.convert %o : tensor<2x3x8x16xf32>
  %p = prim.mul %wg, %wo : tensor<2x3x8x16xf32>
  %d = prim.reduce %p {kind = "add", dims = [3]} : tensor<2x3x8xf32>
  %dq, %dk, %dv = prim.attention_bwd %g, %q, %k, %v, %d, %l {scale = 0.25, causal = true}
    : tensor<2x3x8x16xbf16>, tensor<2x3x8x16xbf16>, tensor<2x3x8x16xbf16>
  func.return %o, %dq : tensor<2x3x8x16xbf16>, tensor<2x3x8x16xbf16>
}

// Float32 stays exact, and a causal rectangle is cut at another corner there.
// CHECK-LABEL: @kept
// CHECK-COUNT-2: prim.attention
func.func @kept(%q: tensor<1x1x8x16xf32>, %h: tensor<1x1x8x16xf16>, %k: tensor<1x1x4x16xf16>)
    -> (tensor<1x1x8x16xf32>, tensor<1x1x8x16xf16>) {
  %o, %l = prim.attention %q, %q, %q {scale = 0.25, causal = false} : tensor<1x1x8x16xf32>, tensor<1x1x8xf32>
  %p, %m = prim.attention %h, %k, %k {scale = 0.25, causal = true} : tensor<1x1x8x16xf16>, tensor<1x1x8xf32>
  func.return %o, %p : tensor<1x1x8x16xf32>, tensor<1x1x8x16xf16>
}

// The library does not weigh what a triangle hides.
// CHECK-LABEL: @weighed
// CHECK:       prim.attention
func.func @weighed(%q: tensor<1x1x8x16xf16>) -> tensor<1x1x8x16xf16> {
  %o, %l = prim.attention %q, %q, %q {scale = 0.25, causal = true, hidden = "weighed"} : tensor<1x1x8x16xf16>, tensor<1x1x8xf32>
  func.return %o : tensor<1x1x8x16xf16>
}
