// RUN: isthmus-opt %s -p form-attention | filecheck %s

// A triangle that is filled with -inf is causal; nothing of the size of scores is left.
// CHECK-LABEL: @causal
// CHECK-NOT:   64x64
// CHECK:       prim.attention %q, %k, %v {scale = 0.25, causal = true, hidden = "weighed"} : tensor<2x4x64x32xf32>, tensor<2x4x64xf32>
// CHECK-NOT:   64x64
// CHECK:       func.return
func.func @causal(%q: tensor<2x4x64x16xf32>, %k: tensor<2x4x64x16xf32>, %v: tensor<2x4x64x32xf32>) -> tensor<2x4x64x32xf32> {
  %t = prim.transpose %k {perm = [0, 1, 3, 2]} : tensor<2x4x16x64xf32>
  %s = prim.dot %q, %t {batch_a = [0, 1], batch_b = [0, 1], contract_a = [3], contract_b = [2]} : tensor<2x4x64x64xf32>
  %four = prim.const {value = 4.0} : tensor<2x4x64x64xf32>
  %x = prim.div %s, %four : tensor<2x4x64x64xf32>
  %c = prim.iota {dim = 1} : tensor<64x64xi64>
  %r = prim.iota {dim = 0} : tensor<64x64xi64>
  %later = prim.cmp %c, %r {predicate = "gt"} : tensor<64x64xi1>
  %m = prim.broadcast %later {dims = [2, 3]} : tensor<2x4x64x64xi1>
  %inf = prim.const {value = -inf} : tensor<2x4x64x64xf32>
  %y = prim.select %m, %inf, %x : tensor<2x4x64x64xf32>
  %p = prim.softmax %y {dim = 3} : tensor<2x4x64x64xf32>
  %o = prim.dot %p, %v {batch_a = [0, 1], batch_b = [0, 1], contract_a = [3], contract_b = [2]} : tensor<2x4x64x32xf32>
  func.return %o : tensor<2x4x64x32xf32>
}

// Any other mask is an operand; a row without a key is NaN, as softmax makes it, and a finite fill stays what it is.
// CHECK-LABEL: @masked
// CHECK:       prim.attention %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {scale = 0.5, causal = false, fill = -1000.0, empty = "nan"}
func.func @masked(%q: tensor<8x64x16xf32>, %v: tensor<8x64x16xf32>, %allowed: tensor<8x64x64xi1>) -> tensor<8x64x16xf32> {
  %s = prim.dot %q, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<8x64x64xf32>
  %half = prim.const {value = 0.5} : tensor<8x64x64xf32>
  %x = prim.mul %half, %s : tensor<8x64x64xf32>
  %fill = prim.const {value = -1000.0} : tensor<8x64x64xf32>
  %y = prim.select %allowed, %x, %fill : tensor<8x64x64xf32>
  %p = prim.softmax %y {dim = 2} : tensor<8x64x64xf32>
  %o = prim.dot %p, %v {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [1]} : tensor<8x64x16xf32>
  func.return %o : tensor<8x64x16xf32>
}

// Who else reads the weights wants them.
// CHECK-LABEL: @weights
// CHECK-NOT:   prim.attention
// CHECK:       func.return
func.func @weights(%q: tensor<8x64x16xf32>) -> (tensor<8x64x16xf32>, tensor<8x64x64xf32>) {
  %s = prim.dot %q, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<8x64x64xf32>
  %p = prim.softmax %s {dim = 2} : tensor<8x64x64xf32>
  %o = prim.dot %p, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [1]} : tensor<8x64x16xf32>
  func.return %o, %p : tensor<8x64x16xf32>, tensor<8x64x64xf32>
}

// The gradient of a mask is one of scores.
// CHECK-LABEL: @learned
// CHECK-NOT:   prim.attention
// CHECK:       func.return
func.func @learned(%q: tensor<8x64x16xf32>, %b: tensor<8x64x64xf32> {autodiff.primal, autodiff.wants_gradient}) -> tensor<8x64x16xf32> {
  %s = prim.dot %q, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<8x64x64xf32>
  %y = prim.add %s, %b : tensor<8x64x64xf32>
  %p = prim.softmax %y {dim = 2} : tensor<8x64x64xf32>
  %o = prim.dot %p, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [1]} : tensor<8x64x16xf32>
  func.return %o : tensor<8x64x16xf32>
}

// Half precision rounds scores and weights; the wrong dimension is another function.
// CHECK-LABEL: @others
// CHECK-NOT:   prim.attention
// CHECK:       func.return
func.func @others(%q: tensor<8x64x16xbf16>, %x: tensor<8x64x16xf32>) -> (tensor<8x64x16xbf16>, tensor<8x64x16xf32>) {
  %s = prim.dot %q, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<8x64x64xbf16>
  %p = prim.softmax %s {dim = 2} : tensor<8x64x64xbf16>
  %o = prim.dot %p, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [1]} : tensor<8x64x16xbf16>
  %t = prim.dot %x, %x {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<8x64x64xf32>
  %r = prim.softmax %t {dim = 1} : tensor<8x64x64xf32>
  %y = prim.dot %r, %x {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [1]} : tensor<8x64x16xf32>
  func.return %o, %y : tensor<8x64x16xbf16>, tensor<8x64x16xf32>
}

// A triangle that is added is an operand: NaN among scores that it hides stays NaN, which a causal kernel never sees.
// CHECK-LABEL: @added
// CHECK:       prim.attention %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {scale = 1.0, causal = false, empty = "nan"}
func.func @added(%q: tensor<8x64x16xf32>) -> tensor<8x64x16xf32> {
  %s = prim.dot %q, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [2]} : tensor<8x64x64xf32>
  %c = prim.iota {dim = 1} : tensor<64x64xi64>
  %r = prim.iota {dim = 0} : tensor<64x64xi64>
  %later = prim.cmp %c, %r {predicate = "gt"} : tensor<64x64xi1>
  %inf = prim.const {value = -inf} : tensor<64x64xf32>
  %zero = prim.const {value = 0.0} : tensor<64x64xf32>
  %m = prim.select %later, %inf, %zero : tensor<64x64xf32>
  %t = prim.broadcast %m {dims = [1, 2]} : tensor<8x64x64xf32>
  %y = prim.add %s, %t : tensor<8x64x64xf32>
  %p = prim.softmax %y {dim = 2} : tensor<8x64x64xf32>
  %o = prim.dot %p, %q {batch_a = [0], batch_b = [0], contract_a = [2], contract_b = [1]} : tensor<8x64x16xf32>
  func.return %o : tensor<8x64x16xf32>
}
