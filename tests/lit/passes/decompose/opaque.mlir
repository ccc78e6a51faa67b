// RUN: isthmus-opt %s -p decompose | filecheck %s
// RUN: isthmus-opt %s -p decompose{table=none} | filecheck %s --check-prefix=NONE
// ROW: P2, P4, P6

// What has no rule, and every custom operator, stays one library call and says why.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: prim.cos %x
// CHECK-NEXT: prim.opaque %{{.*}} {callee = "mylib::scale.default", args = [arg0, 2.0], isthmus.reason = "has no decomposition"}
// CHECK-NEXT: func.return

// NONE-LABEL: func.func @main
// NONE-NEXT: prim.opaque %x {callee = "cos.default"
// NONE-NEXT: prim.opaque %{{.*}} {callee = "mylib::scale.default"
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
  %c = aten.call %x {overload = "cos.default", args = [arg0]} : tensor<4xf32>
  %y = aten.call %c {overload = "mylib::scale.default", args = [arg0, 2.0]} : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
