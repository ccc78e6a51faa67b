// RUN: not isthmus-opt %s -p "partition{strategy=best}" --reproducer %t 2>&1 | filecheck %s

// CHECK: error: pass 'partition{strategy="best"}' failed: there is no strategy 'best'
// CHECK-NEXT: the strategies are min-cut, min-cut-late, min-traffic, default, optimal
func.func @joint(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4xf32> {autodiff.tangent = 0})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0}) {
  %y = prim.sin %x : tensor<4xf32>
  %c = prim.cos %x : tensor<4xf32>
  %g = prim.mul %t, %c : tensor<4xf32>
  func.return %y, %g : tensor<4xf32>, tensor<4xf32>
}
