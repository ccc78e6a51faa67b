// RUN: isthmus-opt %s -p partition --split-input-file | filecheck %s
// What is there anyway is not free to read: among cuts of equal bytes kept, backward reads and writes the least.

// The output would do, but backward reads x and the row's factor in any case: y is computed from them.
// CHECK-LABEL: builtin.module @an_output_that_its_inputs_give
// CHECK:       func.func @backward(%x: tensor<8x64xf32> {{.*}}, %r: tensor<8xf32> {{.*}}, %t: tensor<8x64xf32>
// CHECK:         prim.relu
builtin.module @an_output_that_its_inputs_give {
  func.func @joint(%x: tensor<8x64xf32> {autodiff.primal, autodiff.wants_gradient}, %r: tensor<8xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<8x64xf32> {autodiff.tangent = 0})
      -> (tensor<8x64xf32> {autodiff.output}, tensor<8x64xf32> {autodiff.gradient = 0}, tensor<8xf32> {autodiff.gradient = 1}) {
    %b = prim.broadcast %r {dims = [0]} : tensor<8x64xf32>
    %m = prim.mul %x, %b : tensor<8x64xf32>
    %y = prim.relu %m : tensor<8x64xf32>
    %s = prim.sin %y : tensor<8x64xf32>
    %g = prim.mul %t, %s : tensor<8x64xf32>
    %dx = prim.mul %g, %b : tensor<8x64xf32>
    %h = prim.mul %g, %x : tensor<8x64xf32>
    %dr = prim.reduce %h {kind = "add", dims = [1]} : tensor<8xf32>
    func.return %y, %dx, %dr : tensor<8x64xf32>, tensor<8x64xf32>, tensor<8xf32>
  }
}

// -----

// The same, but a contraction reads y from memory, where it is: computing it again would write it again.
// CHECK-LABEL: builtin.module @an_output_that_a_library_reads
// CHECK:       func.func @backward
// CHECK-NOT:     prim.relu
builtin.module @an_output_that_a_library_reads {
  func.func @joint(%x: tensor<8x64xf32> {autodiff.primal, autodiff.wants_gradient}, %w: tensor<64x4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<8x64xf32> {autodiff.tangent = 0}, %u: tensor<8x4xf32> {autodiff.tangent = 1})
      -> (tensor<8x64xf32> {autodiff.output}, tensor<8x4xf32> {autodiff.output}, tensor<8x64xf32> {autodiff.gradient = 0}, tensor<64x4xf32> {autodiff.gradient = 1}) {
    %y = prim.relu %x : tensor<8x64xf32>
    %z = prim.dot %y, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<8x4xf32>
    %s = prim.sin %x : tensor<8x64xf32>
    %dx = prim.mul %t, %s : tensor<8x64xf32>
    %dw = prim.dot %y, %u {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<64x4xf32>
    func.return %y, %z, %dx, %dw : tensor<8x64xf32>, tensor<8x4xf32>, tensor<8x64xf32>, tensor<64x4xf32>
  }
}
