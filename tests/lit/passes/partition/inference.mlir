// RUN: isthmus-opt %s -p partition | filecheck %s
// ROW: T13

// Nothing wants a gradient: the function becomes @forward as it is.
// CHECK-LABEL: func.func @forward(%x: tensor<4xf32> {autodiff.primal}) -> (tensor<4xf32> {autodiff.output}) {
// CHECK-NEXT:    %[[Y:.*]] = prim.sin %x
// CHECK-NEXT:    func.return %[[Y]] :
// CHECK-NOT:   func.func
func.func @main(%x: tensor<4xf32> {autodiff.primal}) -> (tensor<4xf32> {autodiff.output}) {
  %y = prim.sin %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
