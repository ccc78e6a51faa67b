// RUN: isthmus-opt %s -p "store-past-caches" | filecheck %s

// The largest result of a kernel that moves more than the last cache holds (here 64 KiB, the functions' own price).

// CHECK-LABEL: func.func @rows
// CHECK: past_caches = [1]
func.func @rows(%x: tensor<128x128xf32>) -> (tensor<128xf32>, tensor<128x128xf32>) attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %m, %y = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 0], ["output", 1]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %r : f32
    kernel.store %r {result = 0, map = [d0]}
    kernel.store %d {result = 1, map = [d0, d1]}
  }) : tensor<128xf32>, tensor<128x128xf32>
  func.return %m, %y : tensor<128xf32>, tensor<128x128xf32>
}

// One of two: their lines would turn each other out.
// CHECK-LABEL: func.func @two
// CHECK: past_caches = [0]
func.func @two(%x: tensor<16384xf32>) -> (tensor<16384xf32>, tensor<16384xf32>) attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %a, %b = kernel.fused %x {sizes = [16384], classes = ["parallel"], vector = 0, width = 16, places = [["output", 0], ["output", 1]]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    %n = prim.neg %v : f32
    kernel.store %v {result = 0, map = [d0]}
    kernel.store %n {result = 1, map = [d0]}
  }) : tensor<16384xf32>, tensor<16384xf32>
  func.return %a, %b : tensor<16384xf32>, tensor<16384xf32>
}

// A part of the points that is no line more: any length of one dim, whose bounds are moved.
// CHECK-LABEL: func.func @any_length
// CHECK: past_caches = [0]
func.func @any_length(%x: tensor<16385xbf16>) -> tensor<16385xbf16> attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %y = kernel.fused %x {sizes = [16385], classes = ["parallel"], vector = 0, width = 16, places = [["saved", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0]} : bf16
    %n = prim.neg %v : bf16
    kernel.store %n {result = 0, map = [d0]}
  }) : tensor<16385xbf16>
  func.return %y : tensor<16385xbf16>
}

// CHECK-LABEL: func.func @stays_in_the_cache_by_default
// CHECK-NOT: past_caches =
// CHECK: func.return
func.func @stays_in_the_cache_by_default(%x: tensor<128x128xf32>) -> tensor<128x128xf32> {
  %y = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<128x128xf32>
  func.return %y : tensor<128x128xf32>
}

// CHECK-LABEL: func.func @read_by_a_later_kernel
// CHECK: %[[A:.*]] = kernel.fused
// CHECK-NOT: past_caches =
// CHECK: kernel.fused %[[A]]
// CHECK-SAME: past_caches = [0]
func.func @read_by_a_later_kernel(%x: tensor<128x128xf32>) -> (tensor<128x128xf32>, tensor<128x128xf32>) attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %a = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %n = prim.neg %v : f32
    kernel.store %n {result = 0, map = [d0, d1]}
  }) : tensor<128x128xf32>
  %b = kernel.fused %a {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 1]]} ({
    %v = kernel.load {operand = 0, map = [d1, d0]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<128x128xf32>
  func.return %a, %b : tensor<128x128xf32>, tensor<128x128xf32>
}

// CHECK-LABEL: func.func @rows_cut_lines
// CHECK-NOT: past_caches =
// CHECK: func.return
func.func @rows_cut_lines(%x: tensor<128x129xf32>) -> tensor<128x129xf32> attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %y = kernel.fused %x {sizes = [128, 129], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<128x129xf32>
  func.return %y : tensor<128x129xf32>
}

// What lies in an argument's or an operand's place, or in memory that is used again soon, is in a cache.
// CHECK-LABEL: func.func @in_place
// CHECK-NOT: past_caches =
// CHECK: func.return
func.func @in_place(%x: tensor<128x128xf32>) -> (tensor<128x128xf32>, tensor<128x128xf32>) attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %a = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["temporary", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<128x128xf32>
  %y = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["argument", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
  }) : tensor<128x128xf32>
  func.return %a, %y : tensor<128x128xf32>, tensor<128x128xf32>
}

// Stored column by column, in two pieces, backwards: no whole lines in order.
// CHECK-LABEL: func.func @no_whole_lines
// CHECK-NOT: past_caches =
// CHECK: func.return
func.func @no_whole_lines(%x: tensor<128x128xf32>) -> (tensor<128x128xf32>, tensor<256x128xf32>, tensor<128x128xf32>) attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %a = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d1, d0]}
  }) : tensor<128x128xf32>
  %b = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 1]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    kernel.store %v {result = 0, map = [d0, d1]}
    kernel.store %v {result = 0, map = [d0 + 128, d1]}
  }) : tensor<256x128xf32>
  %c = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 0, width = 16, places = [["output", 2]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %s = kernel.cumulative %v {kind = "add", dim = 1, reverse = true} : f32
    kernel.store %s {result = 0, map = [d0, d1]}
  }) : tensor<128x128xf32>
  func.return %a, %b, %c : tensor<128x128xf32>, tensor<256x128xf32>, tensor<128x128xf32>
}

// The second walk of a row reads what the first has stored, while it is in a cache.
// CHECK-LABEL: func.func @read_by_a_later_walk
// CHECK: past_caches = [1]
func.func @read_by_a_later_walk(%x: tensor<128x128xf32>) -> (tensor<128x128xf32>, tensor<128x128xf32>) attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %e, %y = kernel.fused %x {sizes = [128, 128], classes = ["parallel", "row"], vector = 1, width = 16, places = [["output", 0], ["output", 1]]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %w = prim.exp %v {residence = "reload"} : f32
    %s = kernel.reduce %w {kind = "add", dims = [1]} : f32
    %q = prim.div %w, %s : f32
    kernel.store %w {result = 0, map = [d0, d1]}
    kernel.store %q {result = 1, map = [d0, d1]}
  }) : tensor<128x128xf32>, tensor<128x128xf32>
  func.return %e, %y : tensor<128x128xf32>, tensor<128x128xf32>
}

// Complex numbers are stored one by one.
// CHECK-LABEL: func.func @complex_numbers
// CHECK-NOT: past_caches =
// CHECK: func.return
func.func @complex_numbers(%x: tensor<16384xcomplex<f32>>) -> tensor<16384xcomplex<f32>> attributes {isthmus.prices = #isthmus.lit<[["past_caches", 65536]]>} {
  %y = kernel.fused %x {sizes = [16384], classes = ["parallel"], vector = 0, width = 8, places = [["output", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0]} : complex<f32>
    %n = prim.neg %v : complex<f32>
    kernel.store %n {result = 0, map = [d0]}
  }) : tensor<16384xcomplex<f32>>
  func.return %y : tensor<16384xcomplex<f32>>
}

// Of moving sizes nobody knows how much they move.
// CHECK-LABEL: func.func @moving
// CHECK-NOT: past_caches =
// CHECK: func.return
func.func @moving(%x: tensor<?xf32, #isthmus.lit<[<"s0">]>>) -> tensor<?xf32, #isthmus.lit<[<"s0">]>> attributes {isthmus.prices = #isthmus.lit<[["past_caches", 16]]>} {
  %y = kernel.fused %x {sizes = [<"s0">], classes = ["parallel"], symbols = ["s0"], vector = 0, width = 16, places = [["output", 0]]} ({
    %v = kernel.load {operand = 0, map = [d0]} : f32
    kernel.store %v {result = 0, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"s0">]>>
  func.return %y : tensor<?xf32, #isthmus.lit<[<"s0">]>>
}
