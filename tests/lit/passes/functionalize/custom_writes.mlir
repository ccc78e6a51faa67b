// RUN: isthmus-opt %s -p functionalize | filecheck %s
// ROW: I2

// A custom operator that writes its operand becomes one that gives the new value; what reads it afterwards reads that.
// CHECK-LABEL: @scaled
// CHECK:       %[[M:.*]] = aten.call %x {overload = "mul.Tensor"
// CHECK-NEXT:  %[[N:.*]] = aten.call %[[M]] {overload = "lit::scale.default", args = [arg0, 2.0], updates = [0]{{.*}}} : tensor<4xf32>
// CHECK-NEXT:  %[[A:.*]] = aten.call %[[N]] {overload = "add.Tensor"
// CHECK-NEXT:  func.return %[[A]]
builtin.module attributes {aten.schemas = #isthmus.lit<["add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", "lit::scale(Tensor(a0!) x, float by) -> ()", "mul.Tensor(Tensor self, Tensor other) -> Tensor"]>} {
  func.func @scaled(%x: !aten.ref<4xf32> {autodiff.primal}) -> !aten.ref<4xf32> {
    %mul = aten.call %x {overload = "mul.Tensor", args = [arg0, 3]} : !aten.ref<4xf32>
    aten.call %mul {overload = "lit::scale.default", args = [arg0, 2.0], mutates = [0]}
    %add = aten.call %mul {overload = "add.Tensor", args = [arg0, 1, 1]} : !aten.ref<4xf32>
    func.return %add : !aten.ref<4xf32>
  }
}
