// RUN: isthmus-opt %s -p simplify | filecheck %s

// Reading a part of a concatenation reads the operand it lies in.
// CHECK-LABEL: @slice_of_concat
// CHECK-NEXT: %[[S:.*]] = prim.slice %b {dim = 0, start = 1, limit = 3, stride = 1} : tensor<2xf32>
// CHECK-NEXT: func.return %a, %[[S]]
func.func @slice_of_concat(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>) {
  %c = prim.concat %a, %b {dim = 0} : tensor<8xf32>
  %s = prim.slice %c {dim = 0, start = 0, limit = 4, stride = 1} : tensor<4xf32>
  %t = prim.slice %c {dim = 0, start = 5, limit = 7, stride = 1} : tensor<2xf32>
  func.return %s, %t : tensor<4xf32>, tensor<2xf32>
}

// A part of unknown length too, where its place is certain.
// CHECK-LABEL: @slice_of_concat_of_unknown_sizes
// CHECK-NEXT: func.return %b
func.func @slice_of_concat_of_unknown_sizes(%a: tensor<?xf32, #isthmus.lit<[<"s0">]>>, %b: tensor<?xf32, #isthmus.lit<[<"s1">]>>)
    -> tensor<?xf32, #isthmus.lit<[<"s1">]>> {
  %c = prim.concat %a, %b {dim = 0} : tensor<?xf32, #isthmus.lit<[<"s0 + s1">]>>
  %t = prim.slice %c {dim = 0, start = <"s0">, limit = <"s0 + s1">, stride = 1} : tensor<?xf32, #isthmus.lit<[<"s1">]>>
  func.return %t : tensor<?xf32, #isthmus.lit<[<"s1">]>>
}

// The slices of a whole are the whole.
// CHECK-LABEL: @concat_of_slices
// CHECK-NEXT: func.return %x
func.func @concat_of_slices(%x: tensor<6xf32>) -> tensor<6xf32> {
  %a = prim.slice %x {dim = 0, start = 0, limit = 2, stride = 1} : tensor<2xf32>
  %b = prim.slice %x {dim = 0, start = 2, limit = 5, stride = 1} : tensor<3xf32>
  %c = prim.slice %x {dim = 0, start = 5, limit = 6, stride = 1} : tensor<1xf32>
  %y = prim.concat %a, %b, %c {dim = 0} : tensor<6xf32>
  func.return %y : tensor<6xf32>
}

// Steps of steps multiply.
// CHECK-LABEL: @slice_of_slice
// CHECK-NEXT: %[[S:.*]] = prim.slice %x {dim = 0, start = 3, limit = 16, stride = 6} : tensor<3xf32>
// CHECK-NEXT: func.return %[[S]]
func.func @slice_of_slice(%x: tensor<20xf32>) -> tensor<3xf32> {
  %a = prim.slice %x {dim = 0, start = 1, limit = 20, stride = 2} : tensor<10xf32>
  %y = prim.slice %a {dim = 0, start = 1, limit = 8, stride = 3} : tensor<3xf32>
  func.return %y : tensor<3xf32>
}

// Pads with 0.0 add up to 0.0 where -0.0 was: only the neutral -0.0 joins.
// CHECK-LABEL: @sum_of_pads
// CHECK-NEXT: %[[A:.*]] = prim.pad %a
// CHECK-NEXT: %[[B:.*]] = prim.pad %b
// CHECK-NEXT: %[[S:.*]] = prim.add %[[A]], %[[B]]
// CHECK-NEXT: %[[C:.*]] = prim.concat %a, %b {dim = 0}
// CHECK-NEXT: func.return %[[S]], %[[C]]
func.func @sum_of_pads(%a: tensor<2xf32>, %b: tensor<3xf32>) -> (tensor<5xf32>, tensor<5xf32>) {
  %pa = prim.pad %a {dim = 0, low = 0, high = 3, interior = 0, value = 0.0} : tensor<5xf32>
  %pb = prim.pad %b {dim = 0, low = 2, high = 0, interior = 0, value = 0.0} : tensor<5xf32>
  %s = prim.add %pa, %pb : tensor<5xf32>
  %na = prim.pad %a {dim = 0, low = 0, high = 3, interior = 0, value = -0.0} : tensor<5xf32>
  %nb = prim.pad %b {dim = 0, low = 2, high = 0, interior = 0, value = -0.0} : tensor<5xf32>
  %n = prim.add %nb, %na : tensor<5xf32>
  func.return %s, %n : tensor<5xf32>, tensor<5xf32>
}

// What is equal along a dimension is computed once along it.
// CHECK-LABEL: @below_broadcasts
// CHECK-NEXT: %[[C:.*]] = prim.const {value = 3.0} : tensor<4xf32>
// CHECK-NEXT: %[[M:.*]] = prim.mul %x, %[[C]] : tensor<4xf32>
// CHECK-NEXT: %[[E:.*]] = prim.exp %[[M]] : tensor<4xf32>
// CHECK-NEXT: %[[Y:.*]] = prim.broadcast %[[E]] {dims = [1]} : tensor<8x4xf32>
// CHECK-NEXT: func.return %[[Y]]
func.func @below_broadcasts(%x: tensor<4xf32>) -> tensor<8x4xf32> {
  %b = prim.broadcast %x {dims = [0]} : tensor<4x8xf32>
  %t = prim.transpose %b {perm = [1, 0]} : tensor<8x4xf32>
  %c = prim.const {value = 3.0} : tensor<8x4xf32>
  %m = prim.mul %t, %c : tensor<8x4xf32>
  %y = prim.exp %m : tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}

// Inside regions likewise.
// CHECK-LABEL: @in_regions
// CHECK: ^bb0(%{{.*}}: tensor<4xf32>):
// CHECK-NEXT: prim.yield %
func.func @in_regions(%p: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %y = prim.cond %p, %x ({
  ^bb0(%a: tensor<4xf32>):
    %n = prim.neg %a : tensor<4xf32>
    %m = prim.neg %n : tensor<4xf32>
    %dead = prim.exp %m : tensor<4xf32>
    prim.yield %m
  }, {
  ^bb0(%a: tensor<4xf32>):
    prim.yield %a
  }) : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// Reading the elements 0, 1, 2, ... is reading a part.
// CHECK-LABEL: @gather_in_order
// CHECK-NEXT: %[[S:.*]] = prim.slice %x {dim = 1, start = 0, limit = 3, stride = 1} : tensor<4x3xf32>
// CHECK-NEXT: %[[T:.*]] = prim.transpose %[[S]] {perm = [1, 0]} : tensor<3x4xf32>
// CHECK-NEXT: func.return %[[T]], %x
func.func @gather_in_order(%x: tensor<4x5xf32>) -> (tensor<3x4xf32>, tensor<4x5xf32>) {
  %i = prim.iota {dim = 0} : tensor<3xi64>
  %y = prim.gather %x, %i {dims = [1]} : tensor<3x4xf32>
  %j = prim.iota {dim = 0} : tensor<4xi64>
  %z = prim.gather %x, %j {dims = [0]} : tensor<4x5xf32>
  func.return %y, %z : tensor<3x4xf32>, tensor<4x5xf32>
}

// What is out of range stays a gather, which says so.
// CHECK-LABEL: @gather_beyond
// CHECK: prim.gather
func.func @gather_beyond(%x: tensor<2xf32>) -> tensor<3xf32> {
  %i = prim.iota {dim = 0} : tensor<3xi64>
  %y = prim.gather %x, %i {dims = [0]} : tensor<3xf32>
  func.return %y : tensor<3xf32>
}

// The gradient of reading all rows in order is added as a whole; of some rows it is not.
// CHECK-LABEL: @scatter_in_order
// CHECK-NEXT: %[[T:.*]] = prim.transpose %u {perm = [1, 0]} : tensor<4x5xf32>
// CHECK-NEXT: %[[A:.*]] = prim.add %x, %[[T]] : tensor<4x5xf32>
// CHECK:      %[[P:.*]] = prim.scatter
// CHECK-NEXT: func.return %[[A]], %[[T]], %[[P]]
func.func @scatter_in_order(%x: tensor<4x5xf32>, %u: tensor<5x4xf32>, %v: tensor<2x5xf32>) -> (tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>) {
  %i = prim.iota {dim = 0} : tensor<5xi64>
  %a = prim.scatter %x, %u, %i {dims = [1], kind = "add"} : tensor<4x5xf32>
  %s = prim.scatter %x, %u, %i {dims = [1], kind = "set"} : tensor<4x5xf32>
  %j = prim.iota {dim = 0} : tensor<2xi64>
  %p = prim.scatter %x, %v, %j {dims = [0], kind = "add"} : tensor<4x5xf32>
  func.return %a, %s, %p : tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>
}

// Nothing is scattered: the rest stays as it is.
// CHECK-LABEL: @scatters_nothing
// CHECK-NEXT:    func.return %x
func.func @scatters_nothing(%x: tensor<4xf32>, %u: tensor<0xf32>, %i: tensor<0xi64>) -> tensor<4xf32> {
  %y = prim.scatter %x, %u, %i {dims = [0], kind = "set"} : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
