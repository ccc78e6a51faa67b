// RUN: isthmus-opt %s -p fuse{target=gpu},scale-saved,schedule-gpu,plan-memory | filecheck %s

// What forward has computed for the tangent 1 is scaled where it lies.
// CHECK-LABEL: @loss
// CHECK:       kernel.fused %t, %d {{.*}}unless_one = 0, {{.*}}partitions = 1024, {{.*}}places = {{\[\[}}"argument", 0]]
func.func @loss(%d: tensor<1024x4096xbf16> {autodiff.saved = 0 : i64}, %t: tensor<f32> {autodiff.tangent = 0 : i64})
    -> (tensor<1024x4096xbf16> {autodiff.gradient = 0 : i64}) attributes {isthmus.own_saved = #isthmus.lit<[0]>} {
  %b = prim.broadcast %t {dims = []} : tensor<1024x4096xf32>
  %c = prim.convert %d : tensor<1024x4096xf32>
  %m = prim.mul %c, %b : tensor<1024x4096xf32>
  %g = prim.convert %m : tensor<1024x4096xbf16>
  func.return %g : tensor<1024x4096xbf16>
}

// Two gradients, one of them transposed in memory: that has a place of its own, so nothing is scaled in place.
// CHECK-LABEL: @transposed
// CHECK-NOT:   unless_one
func.func @transposed(%d: tensor<64x32xf32> {autodiff.saved = 0 : i64}, %e: tensor<64x32xf32> {autodiff.saved = 1 : i64},
                      %t: tensor<f32> {autodiff.tangent = 0 : i64})
    -> (tensor<64x32xf32> {autodiff.gradient = 0 : i64}, tensor<32x64xf32> {autodiff.gradient = 1 : i64})
    attributes {isthmus.own_saved = #isthmus.lit<[0, 1]>} {
  %b = prim.broadcast %t {dims = []} : tensor<64x32xf32>
  %g = prim.mul %d, %b : tensor<64x32xf32>
  %h = prim.mul %e, %b : tensor<64x32xf32>
  %i = prim.transpose %h {perm = [1, 0]} : tensor<32x64xf32>
  func.return %g, %i : tensor<64x32xf32>, tensor<32x64xf32>
}

// Not an argument of the user's, which forward has kept without a copy.
// CHECK-LABEL: @not_its_own
// CHECK-NOT:   unless_one
func.func @not_its_own(%d: tensor<64xf32> {autodiff.saved = 0 : i64}, %t: tensor<f32> {autodiff.tangent = 0 : i64})
    -> (tensor<64xf32> {autodiff.gradient = 0 : i64}) {
  %b = prim.broadcast %t {dims = []} : tensor<64xf32>
  %g = prim.mul %d, %b : tensor<64xf32>
  func.return %g : tensor<64xf32>
}

// Not where it is read once more.
// CHECK-LABEL: @read_again
// CHECK-NOT:   unless_one
func.func @read_again(%d: tensor<64xf32> {autodiff.saved = 0 : i64}, %t: tensor<f32> {autodiff.tangent = 0 : i64})
    -> (tensor<64xf32> {autodiff.gradient = 0 : i64}, tensor<f32> {autodiff.gradient = 1 : i64})
    attributes {isthmus.own_saved = #isthmus.lit<[0]>} {
  %b = prim.broadcast %t {dims = []} : tensor<64xf32>
  %g = prim.mul %d, %b : tensor<64xf32>
  %s = prim.reduce %d {kind = "add", dims = [0]} : tensor<f32>
  func.return %g, %s : tensor<64xf32>, tensor<f32>
}
