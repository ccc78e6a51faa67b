// RUN: not isthmus-opt %s 2>&1 | filecheck %s

// An op that breaks a rule is shown as it stands in the text.
// CHECK:      error: {{.*}}names_the_op.mlir:7:3: 'prim.cos': result types must be tensor<4xf32>, not tensor<5xf32>
// CHECK-NEXT:   %a = prim.cos %x : tensor<5xf32>
func.func @f(%x: tensor<4xf32>) -> tensor<5xf32> {
  %a = prim.cos %x : tensor<5xf32>
  func.return %a : tensor<5xf32>
}
