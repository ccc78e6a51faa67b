// RUN: isthmus-opt %s -p decompose | filecheck %s
// RUN: isthmus-opt %s -p decompose{random=library} | filecheck %s --check-prefix=LIBRARY

// One key for the function, counters that no two draws share; in evaluation nothing is drawn.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %key: tensor<i64> {isthmus.key}
// CHECK: prim.rng %key {kind = "uniform", offset = 0} : tensor<4xf32>
// CHECK: prim.rng %key {kind = "uniform", offset = 4} : tensor<4xf32>
// CHECK-NOT: prim.rng

// LIBRARY-LABEL: func.func @main
// LIBRARY-NOT: isthmus.key
// LIBRARY: prim.opaque %x {callee = "bernoulli.p", args = [arg0, 0.5, none], isthmus.reason = "the stream is torch's own"}
// LIBRARY: prim.stop_gradient
// LIBRARY: prim.opaque %{{.*}} {callee = "bernoulli.p"
// LIBRARY-NOT: prim.opaque
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
  %a = aten.call %x {overload = "dropout.default", args = [arg0, 0.5, true]} : tensor<4xf32>
  %b = aten.call %a {overload = "dropout.default", args = [arg0, 0.5, true]} : tensor<4xf32>
  %c = aten.call %b {overload = "dropout.default", args = [arg0, 0.5, false]} : tensor<4xf32>
  func.return %c : tensor<4xf32>
}
