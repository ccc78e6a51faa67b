// RUN: isthmus-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: 'prim.add': operand types differ: tensor<4xf32>, tensor<5xf32>
func.func @shapes(%a: tensor<4xf32>, %b: tensor<5xf32>) {
  %0 = prim.add %a, %b : tensor<4xf32>
  func.return
}

// -----

// CHECK: 'prim.reduce': result types must be tensor<4xf32>, not tensor<5xf32>
func.func @result(%a: tensor<4x5xf32>) {
  %0 = prim.reduce %a {kind = "add", dims = [1]} : tensor<5xf32>
  func.return
}

// -----

// CHECK: 'prim.reshape': tensor<4xf32> and tensor<5xf32> differ in elements
func.func @count(%a: tensor<4xf32>) {
  %0 = prim.reshape %a : tensor<5xf32>
  func.return
}

// -----

// CHECK: 'prim.exp': is not defined for i64
func.func @domain(%a: tensor<4xi64>) {
  %0 = prim.exp %a : tensor<4xi64>
  func.return
}

// -----

// CHECK: %b is used before it is defined
func.func @order(%a: tensor<4xf32>) {
  %0 = prim.add %a, %b : tensor<4xf32>
  func.return
}
