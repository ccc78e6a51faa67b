// RUN: isthmus-opt %s -p functionalize,decompose{to=prim},simplify | filecheck %s
// ROW: I2

// Copies and views that change nothing are gone: clone, view and back, two transposes, expand to its own size, alias.
// CHECK-LABEL: @no_ops
// CHECK-NEXT:  %[[C:.*]] = prim.const {value = 2.0} : tensor<4x4xf32>
// CHECK-NEXT:  %[[Y:.*]] = prim.mul %x, %[[C]] : tensor<4x4xf32>
// CHECK-NEXT:  func.return %[[Y]]
func.func @no_ops(%x: !aten.ref<4x4xf32> {autodiff.primal}) -> !aten.ref<4x4xf32> {
  %clone = aten.call %x {overload = "clone.default", args = [arg0, none]} : !aten.ref<4x4xf32>
  %view = aten.call %clone {overload = "view.default", args = [arg0, [2, 8]], aliases = [0]} : !aten.ref<2x8xf32>
  %reshape = aten.call %view {overload = "view.default", args = [arg0, [4, 4]], aliases = [0]} : !aten.ref<4x4xf32>
  %t = aten.call %reshape {overload = "t.default", args = [arg0], aliases = [0]} : !aten.ref<4x4xf32, strides = [1, 4]>
  %u = aten.call %t {overload = "t.default", args = [arg0], aliases = [0]} : !aten.ref<4x4xf32>
  %expand = aten.call %u {overload = "expand.default", args = [arg0, [4, 4], false], aliases = [0]} : !aten.ref<4x4xf32>
  %alias = aten.call %expand {overload = "alias.default", args = [arg0], aliases = [0]} : !aten.ref<4x4xf32>
  %y = aten.call %alias {overload = "mul.Tensor", args = [arg0, 2]} : !aten.ref<4x4xf32>
  func.return %y : !aten.ref<4x4xf32>
}

// A clone that is written keeps what was before for whoever reads it.
// CHECK-LABEL: @written
// CHECK:       %[[M:.*]] = prim.mul %x, %{{.*}} : tensor<4x4xf32>
// CHECK-NEXT:  %[[S:.*]] = prim.add %x, %[[M]] : tensor<4x4xf32>
// CHECK-NEXT:  func.return %[[S]]
func.func @written(%x: !aten.ref<4x4xf32> {autodiff.primal}) -> !aten.ref<4x4xf32> {
  %clone = aten.call %x {overload = "clone.default", args = [arg0, none]} : !aten.ref<4x4xf32>
  %m = aten.call %clone {overload = "mul_.Tensor", args = [arg0, 2], mutates = [0], aliases = [0]} : !aten.ref<4x4xf32>
  %s = aten.call %x, %clone {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
  func.return %s : !aten.ref<4x4xf32>
}

// A transpose that is not undone stays.
// CHECK-LABEL: @one_transpose
// CHECK:       prim.transpose
func.func @one_transpose(%x: !aten.ref<4x4xf32> {autodiff.primal}) -> !aten.ref<4x4xf32> {
  %t = aten.call %x {overload = "t.default", args = [arg0], aliases = [0]} : !aten.ref<4x4xf32, strides = [1, 4]>
  %s = aten.call %x, %t {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
  func.return %s : !aten.ref<4x4xf32>
}
