// RUN: isthmus-opt %s -p differentiate,simplify | filecheck %s
// ROW: T10

// clamp_min(a, 0)·3: the gradient reads the forward's own comparison, and passes at the bound.
// CHECK: func.func @joint
// CHECK-NEXT: %[[ZERO:.*]] = prim.const {value = 0.0}
// CHECK-NEXT: %[[BELOW:.*]] = prim.cmp %a, %[[ZERO]] {predicate = "lt"} : tensor<2xi1>
// CHECK-NEXT: %[[CLAMPED:.*]] = prim.select %[[BELOW]], %[[ZERO]], %a
// CHECK-NEXT: %[[THREE:.*]] = prim.const {value = 3.0}
// CHECK-NEXT: %[[Y:.*]] = prim.mul %[[CLAMPED]], %[[THREE]]
// CHECK-NEXT: %[[G:.*]] = prim.mul %tangent, %[[THREE]]
// CHECK-NEXT: %[[DA:.*]] = prim.select %[[BELOW]], %[[ZERO]], %[[G]]
// CHECK-NEXT: func.return %[[Y]], %[[DA]]
func.func @main(%a: tensor<2xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<2xf32> {autodiff.output}) {
  %zero = prim.const {value = 0.0} : tensor<2xf32>
  %below = prim.cmp %a, %zero {predicate = "lt"} : tensor<2xi1>
  %clamped = prim.select %below, %zero, %a : tensor<2xf32>
  %three = prim.const {value = 3.0} : tensor<2xf32>
  %y = prim.mul %clamped, %three : tensor<2xf32>
  func.return %y : tensor<2xf32>
}
