// RUN: isthmus-opt %s -p "schedule" | filecheck %s

// A chain of functions over many points is cut where it gets long; what is cheap is computed where it is used first. Few
// points, and functions that do not wait for one another, stay one loop.

// CHECK-LABEL: func.func @chain
// CHECK: %[[A:.*]] = prim.logistic %{{.*}} : f32
// CHECK: prim.tanh %[[A]] {stage = 1} : f32
// CHECK: prim.exp {{.*}} {stage = 2} : f32
// CHECK: prim.neg %[[A]] {stage = 2} : f32
// CHECK: prim.mul {{.*}} {stage = 2} : f32
// CHECK: kernel.store {{.*}}stage = 2
func.func @chain(%x: tensor<8192xf32>) -> tensor<8192xf32> {
  %r = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.logistic %v : f32
    %b = prim.tanh %a : f32
    %c = prim.exp %b : f32
    %n = prim.neg %a : f32
    %d = prim.mul %c, %n : f32
    kernel.store %d {result = 0, map = [d0]}
  }) : tensor<8192xf32>
  func.return %r : tensor<8192xf32>
}

// CHECK-LABEL: func.func @beside
// CHECK-NOT: stage
// CHECK: func.return
func.func @beside(%x: tensor<8192xf32>) -> tensor<8192xf32> {
  %r = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %v : f32
    %c = prim.mul %a, %b : f32
    kernel.store %c {result = 0, map = [d0]}
  }) : tensor<8192xf32>
  func.return %r : tensor<8192xf32>
}

// CHECK-LABEL: func.func @few
// CHECK-NOT: stage
// CHECK: func.return
func.func @few(%x: tensor<64xf32>) -> tensor<64xf32> {
  %r = kernel.fused %x {sizes = [64], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.tanh %v : f32
    %b = prim.exp %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<64xf32>
  func.return %r : tensor<64xf32>
}

// What is known early is stored last: its place may be that of %x, which the last stage reads again.
// CHECK-LABEL: func.func @early
// CHECK: %[[A:.*]] = prim.logistic %{{.*}} : f32
// CHECK: kernel.store %[[A]] {{.*}}stage = 1
func.func @early(%x: tensor<8192xf32>) -> (tensor<8192xf32>, tensor<8192xf32>) {
  %r, %s = kernel.fused %x {sizes = [8192], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %a = prim.logistic %v : f32
    kernel.store %a {result = 0, map = [d0]}
    %b = prim.tanh %a : f32
    %c = prim.mul %b, %v : f32
    kernel.store %c {result = 1, map = [d0]}
  }) : tensor<8192xf32>, tensor<8192xf32>
  func.return %r, %s : tensor<8192xf32>, tensor<8192xf32>
}
