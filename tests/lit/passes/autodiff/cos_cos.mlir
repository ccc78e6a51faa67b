// RUN: isthmus-opt %s -p differentiate | filecheck %s
// RUN: isthmus-opt %s -p differentiate | isthmus-opt -p differentiate | filecheck %s --check-prefix=TWICE
// RUN: isthmus-opt %s -p differentiate{order=2} | filecheck %s --check-prefix=TWICE
// ROW: T6, T29

// One function with live edges from forward to backward; the derivative reads the forward's values.
// CHECK-LABEL: func.func @joint
// CHECK-SAME: (%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %tangent: tensor<4xf32> {autodiff.tangent = 0 : i64})
// CHECK-SAME: -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0 : i64}) {
// CHECK-NEXT: %cos = prim.cos %x : tensor<4xf32>
// CHECK-NEXT: %cos_1 = prim.cos %cos : tensor<4xf32>
// CHECK-NEXT: %sin = prim.sin %cos : tensor<4xf32>
// CHECK-NEXT: %neg = prim.neg %sin : tensor<4xf32>
// CHECK-NEXT: %mul = prim.mul %tangent, %neg : tensor<4xf32>
// CHECK-NEXT: %sin_1 = prim.sin %x : tensor<4xf32>
// CHECK-NEXT: %neg_1 = prim.neg %sin_1 : tensor<4xf32>
// CHECK-NEXT: %mul_1 = prim.mul %mul, %neg_1 : tensor<4xf32>
// CHECK-NEXT: func.return %cos_1, %mul_1
// CHECK-NOT: func.func

// The gradient is what is differentiated again, by the input and by the tangent.
// TWICE: func.func @joint(%x: {{.*}}wants_gradient}, %tangent: {{.*}}wants_gradient}, %tangent_1: {{.*}}autodiff.tangent = 0
// TWICE-SAME: -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0 : i64}, tensor<4xf32> {autodiff.gradient = 1 : i64})
func.func @main(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4xf32> {autodiff.output}) {
  %c = prim.cos %x : tensor<4xf32>
  %y = prim.cos %c : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
