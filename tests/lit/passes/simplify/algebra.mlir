// RUN: isthmus-opt %s -p simplify | filecheck %s

// Neutral elements of floats: x·1, x/1, x - 0.0, x + (-0.0), -(-x).
// CHECK-LABEL: @neutral
// CHECK-SAME: (%x: tensor<4xf32>)
// CHECK-NEXT: func.return %x
func.func @neutral(%x: tensor<4xf32>) -> tensor<4xf32> {
  %one = prim.const {value = 1.0} : tensor<4xf32>
  %zero = prim.const {value = 0.0} : tensor<4xf32>
  %minus = prim.const {value = -0.0} : tensor<4xf32>
  %a = prim.mul %x, %one : tensor<4xf32>
  %b = prim.div %a, %one : tensor<4xf32>
  %c = prim.sub %b, %zero : tensor<4xf32>
  %d = prim.add %c, %minus : tensor<4xf32>
  %n = prim.neg %d : tensor<4xf32>
  %y = prim.neg %n : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -0.0 + 0.0 is 0.0, NaN · 0 is NaN, x - x of infinity is NaN: these stay.
// CHECK-LABEL: @not_neutral
// CHECK: prim.add
// CHECK: prim.mul
// CHECK: prim.sub
func.func @not_neutral(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = prim.const {value = 0.0} : tensor<4xf32>
  %a = prim.add %x, %zero : tensor<4xf32>
  %b = prim.mul %x, %zero : tensor<4xf32>
  %c = prim.sub %x, %x : tensor<4xf32>
  func.return %a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// Sums keep their order.
// CHECK-LABEL: @not_reassociated
// CHECK: %[[A:.*]] = prim.add %x, %[[C:.*]] : tensor<4xf32>
// CHECK: prim.add %[[A]], %[[C]]
func.func @not_reassociated(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = prim.const {value = 0.1} : tensor<4xf32>
  %a = prim.add %x, %c : tensor<4xf32>
  %y = prim.add %a, %c : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// A widening that is undone is nothing; a narrowing is not.
// CHECK-LABEL: @conversions
// CHECK-NEXT: %[[N:.*]] = prim.convert %y : tensor<4xbf16>
// CHECK-NEXT: %[[W:.*]] = prim.convert %[[N]] : tensor<4xf32>
// CHECK-NEXT: func.return %x, %[[W]]
func.func @conversions(%x: tensor<4xbf16>, %y: tensor<4xf32>) -> (tensor<4xbf16>, tensor<4xf32>) {
  %a = prim.convert %x : tensor<4xf32>
  %b = prim.convert %a : tensor<4xf64>
  %c = prim.convert %b : tensor<4xbf16>
  %n = prim.convert %y : tensor<4xbf16>
  %w = prim.convert %n : tensor<4xf32>
  func.return %c, %w : tensor<4xbf16>, tensor<4xf32>
}

// The same condition once more.
// CHECK-LABEL: @selections
// CHECK-NEXT: %[[S:.*]] = prim.select %p, %b, %a
// CHECK-NEXT: func.return %[[S]]
func.func @selections(%p: tensor<4xi1>, %a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %n = prim.not %p : tensor<4xi1>
  %inner = prim.select %n, %a, %c : tensor<4xf32>
  %y = prim.select %n, %inner, %b : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// Equal ops are one, and what nobody reads is none.
// CHECK-LABEL: @shared
// CHECK-NEXT: %[[E:.*]] = prim.exp %x
// CHECK-NEXT: %[[Y:.*]] = prim.add %[[E]], %[[E]]
// CHECK-NEXT: func.return %[[Y]]
func.func @shared(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = prim.exp %x : tensor<4xf32>
  %b = prim.exp %x : tensor<4xf32>
  %dead = prim.sin %x : tensor<4xf32>
  %y = prim.add %a, %b : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
