// RUN: isthmus-opt %s -p join-dots | filecheck %s

// A sum of short contractions is a long one.
// CHECK-LABEL: @sum
// CHECK-DAG:   %[[A:.*]] = prim.concat %g, %h, %g {dim = 0} : tensor<12x16xf32>
// CHECK-DAG:   %[[B:.*]] = prim.concat %x, %y, %y {dim = 0} : tensor<12x16xf32>
// CHECK:       %[[D:.*]] = prim.dot %[[A]], %[[B]] {{{.*}}contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
// CHECK-NEXT:  func.return %[[D]]
func.func @sum(%g: tensor<4x16xf32>, %h: tensor<4x16xf32>, %x: tensor<4x16xf32>, %y: tensor<4x16xf32>) -> tensor<16x16xf32> {
  %a = prim.dot %g, %x {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %b = prim.dot %h, %y {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %c = prim.dot %g, %y {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %s = prim.add %a, %b : tensor<16x16xf32>
  %t = prim.add %s, %c : tensor<16x16xf32>
  func.return %t : tensor<16x16xf32>
}

// Side by side with one operand in common; a sum of contractions of the same operands takes their order.
// CHECK-LABEL: @neighbours
// CHECK-DAG:   %[[B:.*]] = prim.concat %x, %y {dim = 0} : tensor<4x16xf32>
// CHECK-DAG:   %[[A:.*]] = prim.concat %g, %h {dim = 0} : tensor<4x16xf32>
// CHECK-NOT:   prim.concat %h
// CHECK:       %[[D:.*]] = prim.dot %[[A]], %w {{.*}} : tensor<4x16xf32>
// CHECK:       %[[R:.*]] = prim.reshape %[[D]] : tensor<2x2x16xf32>
// CHECK:       %[[E:.*]] = prim.dot %[[A]], %[[B]] {{.*}} : tensor<16x16xf32>
// CHECK:       func.return %[[R]], %[[E]]
func.func @neighbours(%g: tensor<2x16xf32>, %h: tensor<2x16xf32>, %w: tensor<16x16xf32>, %x: tensor<2x16xf32>, %y: tensor<2x16xf32>) -> (tensor<2x2x16xf32>, tensor<16x16xf32>) {
  %a = prim.dot %g, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<2x16xf32>
  %b = prim.dot %h, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<2x16xf32>
  %ra = prim.reshape %a : tensor<1x2x16xf32>
  %rb = prim.reshape %b : tensor<1x2x16xf32>
  %c = prim.concat %ra, %rb {dim = 0} : tensor<2x2x16xf32>
  %p = prim.dot %h, %y {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %q = prim.dot %g, %x {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %s = prim.add %p, %q : tensor<16x16xf32>
  func.return %c, %s : tensor<2x2x16xf32>, tensor<16x16xf32>
}

// Stays: a contraction that somebody else reads.
// CHECK-LABEL: @used_elsewhere
// CHECK-NOT:   prim.concat
// CHECK:       prim.add
func.func @used_elsewhere(%g: tensor<4x16xf32>, %h: tensor<4x16xf32>) -> (tensor<16x16xf32>, tensor<16x16xf32>) {
  %a = prim.dot %g, %g {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %b = prim.dot %h, %h {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %s = prim.add %a, %b : tensor<16x16xf32>
  func.return %s, %a : tensor<16x16xf32>, tensor<16x16xf32>
}

// Stays: long contractions, whose operands are more than their results.
// CHECK-LABEL: @long
// CHECK-NOT:   prim.concat
// CHECK:       prim.add
func.func @long(%g: tensor<64x16xf32>, %h: tensor<64x16xf32>) -> tensor<16x16xf32> {
  %a = prim.dot %g, %g {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %b = prim.dot %h, %h {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %s = prim.add %a, %b : tensor<16x16xf32>
  func.return %s : tensor<16x16xf32>
}

// Stays: a term that is no contraction.
// CHECK-LABEL: @mixed
// CHECK-NOT:   prim.concat
// CHECK:       prim.add
func.func @mixed(%g: tensor<4x16xf32>, %h: tensor<4x16xf32>, %z: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %a = prim.dot %g, %g {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xf32>
  %s = prim.add %a, %z : tensor<16x16xf32>
  func.return %s : tensor<16x16xf32>
}

// Stays: narrow floats, which round each product.
// CHECK-LABEL: @narrow
// CHECK-NOT:   prim.concat
// CHECK:       prim.add
func.func @narrow(%g: tensor<4x16xbf16>, %h: tensor<4x16xbf16>) -> tensor<16x16xbf16> {
  %a = prim.dot %g, %g {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xbf16>
  %b = prim.dot %h, %h {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x16xbf16>
  %s = prim.add %a, %b : tensor<16x16xbf16>
  func.return %s : tensor<16x16xbf16>
}
