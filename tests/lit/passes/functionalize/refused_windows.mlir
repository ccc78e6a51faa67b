// RUN: not isthmus-opt %s -p functionalize --reproducer %t 2>&1 | filecheck %s

// Eager writes overlapping windows in some order; here the cure is named.
// CHECK: 'aten.mul_.Tensor': the written tensor's elements overlap in memory
// CHECK-NEXT: clone() the tensor before it is written
func.func @main(%x: !aten.ref<6xf32>) {
  %w = aten.call %x {overload = "unfold.default", args = [arg0, 0, 3, 1], aliases = [0]} : !aten.ref<4x3xf32, strides = [1, 1]>
  %z = aten.call %w {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<4x3xf32, strides = [1, 1]>
  func.return
}
