// RUN: isthmus-opt --load %S/rules_in_text.py %s -p 'rules-in-text{overload="mylib::half.default"}' | filecheck %s

// A derivative: the call gets a backward of its own, from (cotangent, operands, results) to gradients.
func.func @gradients(%g: tensor<4xf32>, %x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %r = aten.call %g {overload = "mul.Tensor", args = [arg0, 0.5]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// CHECK-LABEL: @main
// CHECK:         %[[Y:.*]] = autodiff.custom %a
// CHECK:           aten.call %{{.*}} {overload = "mylib::half.default"
// CHECK:           autodiff.yield
// CHECK:         ^{{.*}}(%[[G:.*]]: tensor<4xf32>, %{{.*}}: tensor<4xf32>, %{{.*}}: tensor<4xf32>):
// CHECK-NEXT:      %[[D:.*]] = aten.call %[[G]] {overload = "mul.Tensor", args = [arg0, 0.5]}
// CHECK-NEXT:      autodiff.yield %[[D]]
// CHECK:         func.return %[[Y]]
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %b = aten.call %a {overload = "mylib::half.default", args = [arg0]} : tensor<4xf32>
  func.return %b : tensor<4xf32>
}
