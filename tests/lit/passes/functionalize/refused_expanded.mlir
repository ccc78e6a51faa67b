// RUN: not isthmus-opt %s -p functionalize --reproducer %t 2>&1 | filecheck %s

// Eager refuses it, so it is refused: the four rows are one.
// CHECK: 'aten.mul_.Tensor': unsupported operation: more than one element of the written-to tensor refers to a single memory location
func.func @main(%x: !aten.ref<4xf32>) {
  %y = aten.call %x {overload = "expand.default", args = [arg0, [3, 4], false], aliases = [0]} : !aten.ref<3x4xf32, strides = [0, 1]>
  %z = aten.call %y {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<3x4xf32, strides = [0, 1]>
  func.return
}
