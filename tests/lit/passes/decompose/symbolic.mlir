// RUN: isthmus-opt %s -p decompose | filecheck %s

// Sizes stay symbols: a mean divides by the value of a size, a slice ends where the result's type says.
// CHECK-LABEL: func.func @main
// CHECK: prim.reduce %x {kind = "add", dims = [0]} : tensor<4xf32>
// CHECK: prim.size {expr = <"s0">} : tensor<i64>
// CHECK: prim.slice %x {dim = 0, start = 1, limit = <"s0">, stride = 1}
func.func @main(%x: tensor<?x4xf32, #isthmus.lit<[<"s0">, 4]>>) -> (tensor<4xf32>, tensor<?x4xf32, #isthmus.lit<[<"s0 - 1">, 4]>>) {
  %m = aten.call %x {overload = "mean.dim", args = [arg0, [0], false, none]} : tensor<4xf32>
  %t = aten.call %x {overload = "slice.Tensor", args = [arg0, 0, 1, none, 1]} : tensor<?x4xf32, #isthmus.lit<[<"s0 - 1">, 4]>>
  func.return %m, %t : tensor<4xf32>, tensor<?x4xf32, #isthmus.lit<[<"s0 - 1">, 4]>>
}
