// RUN: isthmus-opt %s -p functionalize | filecheck %s

// Windows with gaps between them do not overlap: the write goes by their place in memory, the gaps keep their values.
func.func @main(%x: !aten.ref<8xf32> {autodiff.primal}) -> !aten.ref<8xf32> {
  %y = aten.call %x {overload = "sin.default", args = [arg0]} : !aten.ref<8xf32>
  %w = aten.call %y {overload = "unfold.default", args = [arg0, 0, 2, 3], aliases = [0]} : !aten.ref<3x2xf32, strides = [3, 1]>
  %z = aten.call %w {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<3x2xf32, strides = [3, 1]>
  func.return %y : !aten.ref<8xf32>
}
// CHECK:      %unfold = aten.call %sin
// CHECK-NEXT: %mul = aten.call %unfold
// CHECK-NEXT: %as_strided_scatter = aten.call %sin, %mul {overload = "as_strided_scatter.default", args = [arg0, arg1, [3, 2], [3, 1], 0], aten.puts_back = unit} : tensor<8xf32>
// CHECK-NEXT: func.return %as_strided_scatter
