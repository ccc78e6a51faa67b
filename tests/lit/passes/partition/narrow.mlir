// RUN: isthmus-opt %s -p partition | filecheck %s

// 16 positions fit into a byte: forward hands over 1 byte an element, not 8.
// CHECK-LABEL: func.func @forward
// CHECK:         %[[Y:.*]], %[[I:.*]] = prim.max_pool
// CHECK:         %[[N:.*]] = prim.convert %[[I]] : tensor<1x1x2x2xui8>
// CHECK:         func.return {{.*}}, %[[N]] :
// CHECK-LABEL: func.func @backward
// CHECK:         prim.convert {{.*}} : tensor<1x1x2x2xi64>
func.func @joint(%x: tensor<1x1x4x4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<1x1x2x2xf32> {autodiff.tangent = 0})
    -> (tensor<1x1x2x2xf32> {autodiff.output}, tensor<16xf32> {autodiff.gradient = 0}) {
  %y, %i = prim.max_pool %x {dims = [2, 3], window = [2, 2], strides = [2, 2], low = [0, 0], high = [0, 0], dilations = [1, 1]} : tensor<1x1x2x2xf32>, tensor<1x1x2x2xi64>
  %zero = prim.const {value = 0.0} : tensor<16xf32>
  %g = prim.scatter %zero, %t, %i {dims = [0], kind = "add"} : tensor<16xf32>
  func.return %y, %g : tensor<1x1x2x2xf32>, tensor<16xf32>
}
