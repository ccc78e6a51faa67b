// RUN: isthmus-opt %s -p cse | filecheck %s

// Equal ops are one, whatever stands between them.
// CHECK-LABEL: @equal_ops
// CHECK-NEXT:    %[[A:.*]] = prim.exp %x
// CHECK-NEXT:    %[[N:.*]] = prim.neg %[[A]]
// CHECK-NEXT:    %[[Y:.*]] = prim.add %[[A]], %[[N]]
// CHECK-NEXT:    func.return %[[Y]]
func.func @equal_ops(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = prim.exp %x : tensor<4xf32>
  %n = prim.neg %a : tensor<4xf32>
  %b = prim.exp %x : tensor<4xf32>
  %m = prim.neg %b : tensor<4xf32>
  %y = prim.add %b, %n : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -0.0 and 0.0 are different literals, and so are the ops that read them.
// CHECK-LABEL: @zeros_of_both_signs_stay_apart
// CHECK-DAG:     prim.const {value = 0.0}
// CHECK-DAG:     prim.const {value = -0.0}
func.func @zeros_of_both_signs_stay_apart() -> (tensor<4xf32>, tensor<4xf32>) {
  %p = prim.const {value = 0.0} : tensor<4xf32>
  %n = prim.const {value = -0.0} : tensor<4xf32>
  func.return %p, %n : tensor<4xf32>, tensor<4xf32>
}

// Operands in another order are another op: a NaN of the first operand is kept.
// CHECK-LABEL: @swapped_operands_stay
// CHECK-COUNT-2: prim.add
func.func @swapped_operands_stay(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = prim.add %x, %y : tensor<4xf32>
  %b = prim.add %y, %x : tensor<4xf32>
  func.return %a, %b : tensor<4xf32>, tensor<4xf32>
}
