// RUN: isthmus-opt %s -p "partition{strategy=min-cut}" | filecheck %s --check-prefixes=CHECK,CUT
// RUN: isthmus-opt %s -p "partition{strategy=default}" | filecheck %s --check-prefixes=CHECK,ALL
// ROW: M1
// ROW: M2
// ROW: T9

// The input alone is enough: backward begins by computing cos(x) again. `default` keeps cos(x) too.
// CHECK-LABEL: func.func @forward
// CUT-SAME:    (%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.saved = 0 : i64})
// ALL-SAME:    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.saved = 0 : i64}, tensor<4xf32> {autodiff.saved = 1 : i64})
// CHECK-NEXT:    %[[C:.*]] = prim.cos %x
// CHECK-NEXT:    %[[Y:.*]] = prim.cos %[[C]]
// CUT-NEXT:      func.return %[[Y]], %x :
// ALL-NEXT:      func.return %[[Y]], %x, %[[C]] :
// CHECK-LABEL: func.func @backward
// CUT-SAME:    (%x: tensor<4xf32> {autodiff.saved = 0 : i64}, %t: tensor<4xf32> {autodiff.tangent = 0 : i64})
// CUT-NEXT:      prim.cos %x
// CHECK-NEXT:    prim.sin
// CHECK-NEXT:    prim.neg
// CHECK-NEXT:    prim.mul %t
// CHECK-NEXT:    prim.sin %x
// CHECK-NEXT:    prim.neg
// CHECK-NEXT:    %[[DX:.*]] = prim.mul
// CHECK-NEXT:    func.return %[[DX]] :
func.func @joint(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4xf32> {autodiff.tangent = 0})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0}) {
  %c = prim.cos %x : tensor<4xf32>
  %y = prim.cos %c : tensor<4xf32>
  %s = prim.sin %c : tensor<4xf32>
  %n = prim.neg %s : tensor<4xf32>
  %m = prim.mul %t, %n : tensor<4xf32>
  %s1 = prim.sin %x : tensor<4xf32>
  %n1 = prim.neg %s1 : tensor<4xf32>
  %m1 = prim.mul %m, %n1 : tensor<4xf32>
  func.return %y, %m1 : tensor<4xf32>, tensor<4xf32>
}
