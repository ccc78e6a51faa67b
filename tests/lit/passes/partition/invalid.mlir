// RUN: not isthmus-opt %s -p "partition{strategy=min-cost}" 2>&1 | filecheck %s

// CHECK: error: partition{strategy=min-cost} has no meaning
// CHECK-NEXT: one of min-cut, min-cut-late, min-traffic, default, optimal; did you mean 'min-cut'?
func.func @joint(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4xf32> {autodiff.tangent = 0})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0}) {
  %y = prim.sin %x : tensor<4xf32>
  %c = prim.cos %x : tensor<4xf32>
  %g = prim.mul %t, %c : tensor<4xf32>
  func.return %y, %g : tensor<4xf32>, tensor<4xf32>
}
