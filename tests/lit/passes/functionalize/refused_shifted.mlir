// RUN: not isthmus-opt %s -p functionalize --reproducer %t 2>&1 | filecheck %s

// CHECK: 'aten.add_.Tensor': unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location
func.func @main(%x: !aten.ref<4xf32>) {
  %a = aten.call %x {overload = "slice.Tensor", args = [arg0, 0, 1, 4, 1], aliases = [0]} : !aten.ref<3xf32, offset = 1>
  %b = aten.call %x {overload = "slice.Tensor", args = [arg0, 0, 0, 3, 1], aliases = [0]} : !aten.ref<3xf32>
  %c = aten.call %a, %b {overload = "add_.Tensor", args = [arg0, arg1, 1], mutates = [0], aliases = [0]} : !aten.ref<3xf32, offset = 1>
  func.return
}
