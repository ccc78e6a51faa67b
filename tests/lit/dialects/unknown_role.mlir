// RUN: not isthmus-opt %s -p partition --reproducer %t 2>&1 | filecheck %s

// A misspelt role is an error: without it the argument would silently play none.
// CHECK:      error: pass 'partition' failed: 'autodiff.primel' is no role; did you mean 'autodiff.primal'?
// CHECK-NEXT:   roles: autodiff.primal
func.func @main(%x: tensor<4xf32> {autodiff.primel}) -> (tensor<4xf32> {autodiff.output}) {
  func.return %x : tensor<4xf32>
}
