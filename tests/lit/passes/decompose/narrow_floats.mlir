// RUN: isthmus-opt %s -p decompose | filecheck %s

// Each operation computes in float32 and rounds once; a number that meets a sum is rounded first, as in eager.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[X:.*]] = prim.convert %x : tensor<4xf32>
// CHECK-NEXT: %[[C:.*]] = prim.const {value = 0.10009765625} : tensor<4xf32>
// CHECK-NEXT: %[[S:.*]] = prim.add %[[X]], %[[C]] : tensor<4xf32>
// CHECK-NEXT: %[[N:.*]] = prim.convert %[[S]] : tensor<4xbf16>
func.func @main(%x: tensor<4xbf16>) -> (tensor<4xbf16>) {
  %y = aten.call %x {overload = "add.Tensor", args = [arg0, 0.1, 1]} : tensor<4xbf16>
  func.return %y : tensor<4xbf16>
}
