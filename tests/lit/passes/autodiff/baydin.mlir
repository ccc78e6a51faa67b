// RUN: isthmus-opt %s -p differentiate,simplify | filecheck %s
// ROW: A1

// ln a + a·b - sin b: each argument's adjoint is the sum over its two paths, the later op's first.
// CHECK: func.func @joint
// CHECK: %[[SINE:.*]] = prim.neg %tangent
// CHECK-NEXT: %[[COS:.*]] = prim.cos %b
// CHECK-NEXT: %[[B1:.*]] = prim.mul %[[SINE]], %[[COS]]
// CHECK-NEXT: %[[A1:.*]] = prim.mul %tangent, %b
// CHECK-NEXT: %[[B2:.*]] = prim.mul %tangent, %a
// CHECK-NEXT: %[[A2:.*]] = prim.div %tangent, %a
// CHECK-NEXT: %[[B:.*]] = prim.add %[[B1]], %[[B2]]
// CHECK-NEXT: %[[A:.*]] = prim.add %[[A1]], %[[A2]]
// CHECK-NEXT: func.return %{{.*}}, %[[A]], %[[B]]
func.func @main(%a: tensor<f64> {autodiff.primal, autodiff.wants_gradient},
                %b: tensor<f64> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<f64> {autodiff.output}) {
  %ln = prim.log %a : tensor<f64>
  %product = prim.mul %a, %b : tensor<f64>
  %sum = prim.add %ln, %product : tensor<f64>
  %sine = prim.sin %b : tensor<f64>
  %y = prim.sub %sum, %sine : tensor<f64>
  func.return %y : tensor<f64>
}
