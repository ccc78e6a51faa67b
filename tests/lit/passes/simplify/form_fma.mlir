// RUN: isthmus-opt %s -p form-fma | filecheck %s

// CHECK-LABEL: @product_plus
// CHECK-NEXT: %[[Y:.*]] = prim.fma %a, %b, %c
// CHECK-NEXT: func.return %[[Y]]
func.func @product_plus(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %m = prim.mul %a, %b : tensor<4xf32>
  %y = prim.add %c, %m : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// c - a·b = fma(-a, b, c), a·b - c = fma(a, b, -c).
// CHECK-LABEL: @differences
// CHECK-NEXT: %[[NA:.*]] = prim.neg %a
// CHECK-NEXT: %[[X:.*]] = prim.fma %[[NA]], %b, %c
// CHECK-NEXT: %[[NC:.*]] = prim.neg %c
// CHECK-NEXT: %[[Y:.*]] = prim.fma %a, %b, %[[NC]]
// CHECK-NEXT: func.return %[[X]], %[[Y]]
func.func @differences(%a: tensor<4xf64>, %b: tensor<4xf64>, %c: tensor<4xf64>) -> (tensor<4xf64>, tensor<4xf64>) {
  %m = prim.mul %a, %b : tensor<4xf64>
  %x = prim.sub %c, %m : tensor<4xf64>
  %n = prim.mul %a, %b : tensor<4xf64>
  %y = prim.sub %n, %c : tensor<4xf64>
  func.return %x, %y : tensor<4xf64>, tensor<4xf64>
}

// A product that others read too, and one that is rounded to fewer bits, stay.
// CHECK-LABEL: @kept
// CHECK-NOT: prim.fma
func.func @kept(%a: tensor<4xf32>, %b: tensor<4xf32>, %h: tensor<4xbf16>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xbf16>) {
  %m = prim.mul %a, %b : tensor<4xf32>
  %x = prim.add %m, %a : tensor<4xf32>
  %n = prim.mul %h, %h : tensor<4xbf16>
  %y = prim.add %n, %h : tensor<4xbf16>
  func.return %m, %x, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xbf16>
}
