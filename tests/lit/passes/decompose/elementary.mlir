// RUN: isthmus-opt %s -p decompose | filecheck %s --check-prefix=PRIM
// RUN: isthmus-opt %s -p decompose,decompose{to=elementary} | filecheck %s
// ROW: P1

// The pass stops at the level asked for: structured primitives stay whole, or are written out.
// PRIM: prim.softmax %x {dim = 1} : tensor<4x8xf32>
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[MAX:.*]] = prim.reduce %x {kind = "max", dims = [1]} : tensor<4xf32>
// CHECK-NEXT: prim.stop_gradient %[[MAX]]
// CHECK-NOT: prim.softmax
// CHECK: prim.exp
// CHECK: prim.reduce %{{.*}} {kind = "add", dims = [1]} : tensor<4xf32>
// CHECK: prim.div
func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>) {
  %y = aten.call %x {overload = "softmax.int", args = [arg0, -1, none]} : tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
