// RUN: isthmus-opt %s -p differentiate,simplify | filecheck %s

// floor(x) + ceil(x) is differentiable, with derivative 0: zeros, and no other work.
// CHECK: func.func @joint
// CHECK-SAME: autodiff.tangent = 0
// CHECK-NEXT: %[[F:.*]] = prim.floor %x
// CHECK-NEXT: %[[C:.*]] = prim.ceil %x
// CHECK-NEXT: %[[Y:.*]] = prim.add %[[F]], %[[C]]
// CHECK-NEXT: %[[ZERO:.*]] = prim.const {value = 0.0} : tensor<?x512xf32
// CHECK-NEXT: func.return %[[Y]], %[[ZERO]]
func.func @main(%x: tensor<?x512xf32, #isthmus.lit<[<"s0">, 512]>> {autodiff.primal, autodiff.wants_gradient})
    -> (tensor<?x512xf32, #isthmus.lit<[<"s0">, 512]>> {autodiff.output}) {
  %f = prim.floor %x : tensor<?x512xf32, #isthmus.lit<[<"s0">, 512]>>
  %c = prim.ceil %x : tensor<?x512xf32, #isthmus.lit<[<"s0">, 512]>>
  %y = prim.add %f, %c : tensor<?x512xf32, #isthmus.lit<[<"s0">, 512]>>
  func.return %y : tensor<?x512xf32, #isthmus.lit<[<"s0">, 512]>>
}
