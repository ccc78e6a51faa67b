// RUN: isthmus-opt --load %S/rules_in_text.py %s -p 'rules-in-text{overload="mylib::twice.default"}' | filecheck %s

// A decomposition: what a call is made of takes its place, without a history where the call has none.
func.func @meaning(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = aten.call %x {overload = "mul.Tensor", args = [arg0, 2.0]} : tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// CHECK-LABEL: @every_call_of_it
// CHECK-NEXT:    %[[A:.*]] = aten.call %a {overload = "mul.Tensor", args = [arg0, 2.0]}
// CHECK-NEXT:    %[[B:.*]] = aten.call %[[A]] {overload = "mul.Tensor", args = [arg0, 2.0], grad = false}
// CHECK-NEXT:    %[[C:.*]] = aten.call %[[B]] {overload = "mylib::thrice.default"
// CHECK-NEXT:    func.return %[[C]]
func.func @every_call_of_it(%a: tensor<4xf32>) -> tensor<4xf32> {
  %b = aten.call %a {overload = "mylib::twice.default", args = [arg0]} : tensor<4xf32>
  %c = aten.call %b {overload = "mylib::twice.default", args = [arg0], grad = false} : tensor<4xf32>
  %d = aten.call %c {overload = "mylib::thrice.default", args = [arg0]} : tensor<4xf32>
  func.return %d : tensor<4xf32>
}
