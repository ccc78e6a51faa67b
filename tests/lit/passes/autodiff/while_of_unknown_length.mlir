// RUN: isthmus-opt %s -p differentiate | filecheck %s
// ROW: D16

// Nothing bounds the loop: its steps are counted, carries are kept at a stride, and a walk goes back between them.
// CHECK: func.func @joint
// CHECK: prim.while %x, %w {carried = 1}
// CHECK: %{{.*}}, %[[N:.*]] = prim.while %x, %{{.*}}, %w {carried = 2}
// CHECK: prim.div %{{.*}} : tensor<i64>
// CHECK: prim.iota {dim = 0} : tensor<64xi64>
// CHECK: prim.scan %x, %{{.*}}, %[[N]], {{.*}}{carried = 1, scanned = 1, reverse = false}
// CHECK: prim.while
// CHECK: prim.scan {{.*}}{carried = 2, scanned = 2, reverse = true}
// CHECK: prim.while {{.*}}{carried = 3}
func.func @main(%x: tensor<f32> {autodiff.primal, autodiff.wants_gradient}, %w: tensor<f32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<f32> {autodiff.output}) {
  %y = prim.while %x, %w {carried = 1} ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = prim.const {value = 9.0} : tensor<f32>
    %p = prim.cmp %a, %c {predicate = "lt"} : tensor<i1>
    prim.yield %p
  }, {
  ^bb1(%a: tensor<f32>, %b: tensor<f32>):
    %n = prim.mul %a, %b : tensor<f32>
    prim.yield %n
  }) : tensor<f32>
  func.return %y : tensor<f32>
}
