// RUN: isthmus-opt --load %S/rules_in_text.py %s -p rules-in-text | filecheck %s

// x*y + z becomes one call, wherever it stands and however its commutative calls are turned.
func.func @pattern(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> tensor<4xf32> {
  %m = aten.call %x, %y {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
  %r = aten.call %m, %z {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}
func.func @replacement(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> tensor<4xf32> {
  %r = aten.call %x, %y, %z {overload = "mylib::fma.default", args = [arg0, arg1, arg2]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// CHECK-LABEL: @as_written
// CHECK-NEXT:    %[[R:.*]] = aten.call %a, %b, %c {overload = "mylib::fma.default", args = [arg0, arg1, arg2]}
// CHECK-NEXT:    func.return %[[R]]
func.func @as_written(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %m = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
  %r = aten.call %m, %c {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// CHECK-LABEL: @sum_turned_and_in_place
// CHECK-NEXT:    aten.call %a, %b, %c {overload = "mylib::fma.default"
// CHECK-NEXT:    func.return
func.func @sum_turned_and_in_place(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %m = aten.call %a, %b {overload = "mul_.Tensor", args = [arg0, arg1], updates = [0]} : tensor<4xf32>
  %r = aten.call %c, %m {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// The match stands on the longer of two chains: what is put in is not matched again.
// CHECK-LABEL: @one_after_the_other
// CHECK-NEXT:    %[[M:.*]] = aten.call %a, %b, %c {overload = "mylib::fma.default"
// CHECK-NEXT:    aten.call %[[M]], %b, %c {overload = "mylib::fma.default"
// CHECK-NEXT:    func.return
func.func @one_after_the_other(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %m = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
  %r = aten.call %m, %c {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  %n = aten.call %r, %b {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
  %s = aten.call %n, %c {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  func.return %s : tensor<4xf32>
}

// Somebody else reads the product: it stays for him.
// CHECK-LABEL: @product_is_wanted_too
// CHECK-NEXT:    %[[M:.*]] = aten.call %a, %b {overload = "mul.Tensor"
// CHECK-NEXT:    %[[R:.*]] = aten.call %a, %b, %c {overload = "mylib::fma.default"
// CHECK-NEXT:    func.return %[[M]], %[[R]]
func.func @product_is_wanted_too(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %m = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
  %r = aten.call %m, %c {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  func.return %m, %r : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: @another_number_stays
// CHECK-NOT:     mylib
func.func @another_number_stays(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %m = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
  %r = aten.call %m, %c {overload = "add.Tensor", args = [arg0, arg1, 2]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// A history that only one of the calls has cannot be kept by one call.
// CHECK-LABEL: @history_of_one_part_stays
// CHECK-NOT:     mylib
func.func @history_of_one_part_stays(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> tensor<4xf32> {
  %m = aten.call %a, %b {overload = "mul.Tensor", args = [arg0, arg1], grad = false} : tensor<4xf32>
  %r = aten.call %m, %c {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}
