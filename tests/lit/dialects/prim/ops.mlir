// RUN: isthmus-opt %s | isthmus-opt | filecheck %s
// Every kind of primitive prints what it parses.

// CHECK-LABEL: @elementwise
func.func @elementwise(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[S:.*]] = prim.add %[[A:.*]], %[[B:.*]] : tensor<4xf32>
  %0 = prim.add %a, %b : tensor<4xf32>
  // CHECK-NEXT: %[[P:.*]] = prim.cmp %[[S]], %[[B]] {predicate = "lt"} : tensor<4xi1>
  %1 = prim.cmp %0, %b {predicate = "lt"} : tensor<4xi1>
  // CHECK-NEXT: prim.select %[[P]], %[[S]], %[[B]] : tensor<4xf32>
  %2 = prim.select %1, %0, %b : tensor<4xf32>
  // CHECK-NEXT: prim.const {value = -inf} : tensor<4xf32>
  %3 = prim.const {value = -inf} : tensor<4xf32>
  // CHECK-NEXT: prim.const {value = 1.0e-05} : tensor<4xf32>
  %4 = prim.const {value = 1.0e-05} : tensor<4xf32>
  // CHECK-NEXT: prim.convert {{.*}} : tensor<4xbf16>
  %5 = prim.convert %2 : tensor<4xbf16>
  func.return %2 : tensor<4xf32>
}

// CHECK-LABEL: @symbolic
func.func @symbolic(%x: tensor<?x4xf32, #isthmus.lit<[<"s0">, 4]>>) {
  // CHECK-NEXT: prim.reshape {{.*}} : tensor<?xf32, #isthmus.lit<[<"4*s0">]>>
  %0 = prim.reshape %x : tensor<?xf32, #isthmus.lit<[<"4*s0">]>>
  // CHECK-NEXT: prim.size {expr = <"4*s0 + 1">} : tensor<i64>
  %1 = prim.size {expr = <"4*s0 + 1">} : tensor<i64>
  // CHECK-NEXT: prim.slice {{.*}} {dim = 0, start = 1, limit = <"s0">, stride = 1} : tensor<?x4xf32, #isthmus.lit<[<"s0 - 1">, 4]>>
  %2 = prim.slice %x {dim = 0, start = 1, limit = <"s0">, stride = 1} : tensor<?x4xf32, #isthmus.lit<[<"s0 - 1">, 4]>>
  func.return
}

// CHECK-LABEL: @regions
func.func @regions(%p: tensor<i1>, %x: tensor<4xf32>) {
  // CHECK-NEXT: prim.cond %{{.*}}, %{{.*}} ({
  %0 = prim.cond %p, %x ({
  ^bb0(%a: tensor<4xf32>):
    %s = prim.sin %a : tensor<4xf32>
    // CHECK: prim.yield
    prim.yield %s
  }, {
  ^bb0(%a: tensor<4xf32>):
    %c = prim.cos %a : tensor<4xf32>
    prim.yield %c
  }) : tensor<4xf32>
  func.return
}

// CHECK-LABEL: @opaque
func.func @opaque(%x: tensor<4x4xf32>) {
  // CHECK-NEXT: prim.opaque %{{.*}} {callee = "linalg_det.default", args = [arg0]} : tensor<f32>
  %0 = prim.opaque %x {callee = "linalg_det.default", args = [arg0]} : tensor<f32>
  func.return
}
