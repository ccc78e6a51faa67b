// RUN: isthmus-opt %s -p "partition{strategy=min-cut}" | filecheck %s --check-prefix=EARLY
// RUN: isthmus-opt %s -p "partition{strategy=min-cut-late}" | filecheck %s --check-prefix=LATE
// ROW: M6

// A loss over 64 x 128 scores from 4 features: the two gradients of the product that makes them are 3 KiB, the scores
// 32 KiB. Forward computes the gradients for t = 1, backward multiplies by t.
// EARLY-LABEL: func.func @forward
// EARLY:         %[[ONE:.*]] = prim.const {value = 1.0} : tensor<f32>
// EARLY:         %[[DW:.*]] = prim.dot {{.*}} : tensor<4x128xf32>
// EARLY:         func.return {{.*}}, %[[DW]] :
// EARLY-LABEL: func.func @backward
// EARLY-NOT:     prim.dot
// EARLY:         %[[T:.*]] = prim.broadcast %t
// EARLY-NEXT:    %[[G:.*]] = prim.mul %{{.*}}, %[[T]]
// EARLY-NEXT:    func.return %[[G]] :

// LATE-LABEL:  func.func @backward
// LATE:          prim.dot {{.*}} : tensor<4x128xf32>
func.func @joint(
    %x: tensor<64x512xf32> {autodiff.primal},
    %v: tensor<512x4xf32> {autodiff.primal},
    %w: tensor<4x128xf32> {autodiff.primal, autodiff.wants_gradient},
    %t: tensor<f32> {autodiff.tangent = 0}
) -> (tensor<f32> {autodiff.output}, tensor<4x128xf32> {autodiff.gradient = 2}) {
  %h = prim.dot %x, %v {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x4xf32>
  %s = prim.dot %h, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<64x128xf32>
  %z = prim.sin %s : tensor<64x128xf32>
  %y = prim.reduce %z {kind = "add", dims = [0, 1]} : tensor<f32>
  %c = prim.cos %s : tensor<64x128xf32>
  %b = prim.broadcast %t {dims = []} : tensor<64x128xf32>
  %g = prim.mul %b, %c : tensor<64x128xf32>
  %dw = prim.dot %h, %g {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<4x128xf32>
  func.return %y, %dw : tensor<f32>, tensor<4x128xf32>
}
