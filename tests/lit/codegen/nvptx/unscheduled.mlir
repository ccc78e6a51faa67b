// RUN: not isthmus-opt %s -t ptx 2>&1 | filecheck %s
// RUN: not isthmus-opt %s -p schedule-gpu -t ptx{arch=sm_20} 2>&1 | filecheck %s --check-prefix=ARCH

// CHECK: 'kernel.fused': has no threads: schedule-gpu has not run
// ARCH:  there is no GPU 'sm_20'
// ARCH:  choose from sm_80, sm_90, sm_90a, sm_100
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = kernel.fused %x {sizes = [4], classes = ["parallel"]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
