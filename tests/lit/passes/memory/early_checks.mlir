// RUN: isthmus-opt %s -p early-checks{least=1024} | filecheck %s

// An index that is read from an argument is looked at before all else.
// CHECK-LABEL: @loss
// CHECK:       kernel.fused %t {sizes = [8], classes = ["parallel"]} ({
// CHECK-NEXT:    [[L:%\w+]] = kernel.load {operand = 0, map = [d0]} : i64
// CHECK-NEXT:    [[C:%\w+]] = kernel.check [[L]] {bound = 64, dim = 1} : i64
// CHECK-NEXT:    kernel.store [[C]] {result = 0, map = [d0]}
// CHECK-NEXT:  }) : tensor<8xi64>
// CHECK:       kernel.fused %z
// CHECK:       kernel.fused %t, %z
func.func @loss(%z: tensor<8x64xf32>, %t: tensor<8xi64>) -> (tensor<8xf32> {autodiff.output}, tensor<8xf32> {autodiff.output}) {
  %m = kernel.fused %z {sizes = [8, 64], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    kernel.store %r {result = 0, map = [d0]}
  }) : tensor<8xf32>
  %p = kernel.fused %t, %z {sizes = [8], classes = ["parallel"]} ({
    %i = kernel.load {operand = 0, map = [d0]} : i64
    %c = kernel.check %i {bound = 64, dim = 1} : i64
    %v = kernel.load %c {operand = 1, map = [d0, v0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<8xf32>
  func.return %m, %p : tensor<8xf32>, tensor<8xf32>
}

// Not where it is looked at early anyway, nor twice.
// CHECK-LABEL: @first
// CHECK:       kernel.fused %t, %z
// CHECK-NOT:   kernel.fused %t {
func.func @first(%z: tensor<4x8xf32>, %t: tensor<8xi64>) -> (tensor<8xf32> {autodiff.output}) {
  %p = kernel.fused %t, %z {sizes = [8], classes = ["parallel"]} ({
    %i = kernel.load {operand = 0, map = [d0]} : i64
    %c = kernel.check %i {bound = 4, dim = 0} : i64
    %v = kernel.load %c {operand = 1, map = [v0, d0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<8xf32>
  func.return %p : tensor<8xf32>
}

// Not where only some of the numbers are looked at, or where they are computed.
// CHECK-LABEL: @some
// CHECK-NOT:   classes = ["parallel"]} ({
// CHECK:       kernel.fused %z
func.func @some(%z: tensor<8x64xf32>, %t: tensor<8xi64>) -> (tensor<8xf32> {autodiff.output}, tensor<4xf32> {autodiff.output}) {
  %m = kernel.fused %z {sizes = [8, 64], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    kernel.store %r {result = 0, map = [d0]}
  }) : tensor<8xf32>
  %p = kernel.fused %t, %z {sizes = [4], classes = ["parallel"], width = 1} ({
    %i = kernel.load {operand = 0, map = [d0]} : i64
    %c = kernel.check %i {bound = 64, dim = 1} : i64
    %v = kernel.load %c {operand = 1, map = [d0, v0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %m, %p : tensor<8xf32>, tensor<4xf32>
}

// Kernels that check the tensor part by part are as good as one that checks all of it.
// CHECK-LABEL: @parts
// CHECK:       kernel.fused %t {sizes = [8], classes = ["parallel"]} ({
// CHECK-NEXT:    kernel.load {operand = 0, map = [d0]} : i64
// CHECK-NEXT:    kernel.check
// CHECK:       kernel.fused %z
func.func @parts(%z: tensor<8x64xf32>, %t: tensor<8xi64>) -> (tensor<8xf32> {autodiff.output}, tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.output}) {
  %m = kernel.fused %z {sizes = [8, 64], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    kernel.store %r {result = 0, map = [d0]}
  }) : tensor<8xf32>
  %p = kernel.fused %t, %z {sizes = [4], classes = ["parallel"]} ({
    %i = kernel.load {operand = 0, map = [d0]} : i64
    %c = kernel.check %i {bound = 64, dim = 1} : i64
    %v = kernel.load %c {operand = 1, map = [d0, v0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<4xf32>
  %q = kernel.fused %t, %z {sizes = [4], classes = ["parallel"]} ({
    %i = kernel.load {operand = 0, map = [d0 + 4]} : i64
    %c = kernel.check %i {bound = 64, dim = 1} : i64
    %v = kernel.load %c {operand = 1, map = [d0 + 4, v0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %m, %p, %q : tensor<8xf32>, tensor<4xf32>, tensor<4xf32>
}
