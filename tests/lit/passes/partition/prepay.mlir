// RUN: isthmus-opt %s -p prepay-gradients{least=1024},partition | filecheck %s

// Forward computes the gradient for the tangent 1 beside the loss; backward reads nothing else.
// CHECK-LABEL: @forward
// CHECK:       [[G:%\w+]] = prim.mul {{.*}}"must_save"
// CHECK:       func.return {{%\w+}}, [[G]]
// CHECK-LABEL: @backward
// CHECK-NOT:   prim.exp
// CHECK:       [[T:%\w+]] = prim.broadcast %tangent
// CHECK:       [[R:%\w+]] = prim.mul {{%\w+}}, [[T]]
// CHECK:       func.return [[R]]
func.func @joint(%x: tensor<64x64xf32> {autodiff.primal, autodiff.wants_gradient}, %tangent: tensor<f32> {autodiff.tangent = 0 : i64})
    -> (tensor<f32> {autodiff.output}, tensor<64x64xf32> {autodiff.gradient = 0 : i64}) {
  %e = prim.exp %x : tensor<64x64xf32>
  %y = prim.mul %e, %x : tensor<64x64xf32>
  %l = prim.reduce %y {kind = "add", dims = [0, 1]} : tensor<f32>
  %b = prim.broadcast %tangent {dims = []} : tensor<64x64xf32>
  %d = prim.add %e, %y : tensor<64x64xf32>
  %g = prim.mul %d, %b : tensor<64x64xf32>
  func.return %l, %g : tensor<f32>, tensor<64x64xf32>
}
