// RUN: isthmus-opt %s -p "partition{strategy=min-cut}" | filecheck %s --check-prefixes=CHECK,SHORT
// RUN: sed s/isthmus.hints/another.name/ %s | isthmus-opt -p "partition{strategy=min-cut}" | filecheck %s --check-prefixes=CHECK,UNKNOWN
// ROW: M1

// Two rows of 16 numbers are less than what they are made of, 2 + 16 + 16 numbers; 256 rows, the guess, are more.
// CHECK-LABEL: func.func @forward
// CHECK:       %[[X:.*]] = prim.reduce
// CHECK:       %[[V:.*]] = prim.reduce
// CHECK:       %[[W:.*]] = prim.reduce
// CHECK:       %[[E:.*]] = prim.exp
// SHORT:       func.return %{{[^,]*}}, %[[E]] :
// UNKNOWN:     func.return %{{[^,]*}}, %[[X]], %[[V]], %[[W]] :
module attributes {isthmus.hints = #isthmus.lit<[["s0", 2]]>} {
  func.func @joint(%x: tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>> {autodiff.primal, autodiff.wants_gradient}, %v: tensor<16x64xf32> {autodiff.primal}, %w: tensor<16x64xf32> {autodiff.primal}, %t: tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.tangent = 0})
      -> (tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.output}, tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>> {autodiff.gradient = 0}) {
    %sx = prim.reduce %x {kind = "add", dims = [1]} : tensor<?xf32, #isthmus.lit<[<"s0">]>>
    %sv = prim.reduce %v {kind = "add", dims = [1]} : tensor<16xf32>
    %sw = prim.reduce %w {kind = "add", dims = [1]} : tensor<16xf32>
    %bx = prim.broadcast %sx {dims = [0]} : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %bv = prim.broadcast %sv {dims = [1]} : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %bw = prim.broadcast %sw {dims = [1]} : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %p = prim.mul %bx, %bv : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %q = prim.add %p, %bw : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %e = prim.exp %q : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %y = prim.reduce %e {kind = "add", dims = [1]} : tensor<?xf32, #isthmus.lit<[<"s0">]>>
    %bt = prim.broadcast %t {dims = [0]} : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %d = prim.mul %bt, %e : tensor<?x16xf32, #isthmus.lit<[<"s0">, 16]>>
    %r = prim.reduce %d {kind = "add", dims = [1]} : tensor<?xf32, #isthmus.lit<[<"s0">]>>
    %g = prim.broadcast %r {dims = [0]} : tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>
    func.return %y, %g : tensor<?xf32, #isthmus.lit<[<"s0">]>>, tensor<?x64xf32, #isthmus.lit<[<"s0">, 64]>>
  }
}
