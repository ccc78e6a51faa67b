// RUN: isthmus-opt %s -p 'chunk-rows{least=100000 most=300000 deep=1}' | filecheck %s
// RUN: isthmus-opt %s -p 'chunk-rows{least=100000 most=300000 deep=1},fuse,plan-memory' | filecheck %s --check-prefix=PLANNED

// 256 rows of 512 numbers are two pieces of 128 rows: what comes out of rows is put together, a sum over rows is added.
// CHECK-LABEL: @pieces
// CHECK:       %[[H0:.*]] = prim.slice %h {dim = 0, start = 0, limit = 128, stride = 1
// CHECK:       %[[Z0:.*]] = prim.dot %[[H0]], %w {{.*}} piece = 0} : tensor<128x512xf32>
// CHECK:       %[[P0:.*]] = prim.exp %{{.*}} {piece = 0} : tensor<128x512xf32>
// CHECK:       %[[D0:.*]] = prim.dot %[[P0]], %w {{.*}} : tensor<128x16xf32>
// CHECK:       %[[W0:.*]] = prim.dot %[[P0]], %[[H0]] {{.*}} : tensor<512x16xf32>
// CHECK:       %[[H1:.*]] = prim.slice %h {dim = 0, start = 128, limit = 256, stride = 1
// CHECK:       %[[W1:.*]] = prim.dot %{{.*}}, %[[H1]] {{.*}} : tensor<512x16xf32>
// CHECK:       %[[W:.*]] = prim.add %[[W1]], %[[W0]] {accumulates = true, piece = 1} : tensor<512x16xf32>
// CHECK:       %[[D:.*]] = prim.concat %[[D0]], %{{.*}} {dim = 0} : tensor<256x16xf32>
// CHECK-NOT:   256x512
// CHECK:       func.return %[[D]], %[[W]]

// Each product of the second piece has the place of that of the first one.
// PLANNED-LABEL: @pieces
// PLANNED:       places = {{\[\[}}"temporary", [[Z:[0-9]+]]]]{{.*}} : tensor<128x512xf32>
// PLANNED:       ["output", 1]{{.*}} : tensor<512x16xf32>
// PLANNED:       places = {{\[\[}}"temporary", [[Z]]]]{{.*}} : tensor<128x512xf32>
// PLANNED:       ["bias", "c"]{{.*}} places = {{\[\[}}"output", 1]]{{.*}} : tensor<512x16xf32>
func.func @pieces(%h: tensor<256x16xf32>, %w: tensor<512x16xf32>) -> (tensor<256x16xf32>, tensor<512x16xf32>) {
  %z = prim.dot %h, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x512xf32>
  %m = prim.reduce %z {kind = "max", dims = [1]} : tensor<256xf32>
  %b = prim.broadcast %m {dims = [0]} : tensor<256x512xf32>
  %s = prim.sub %z, %b : tensor<256x512xf32>
  %p = prim.exp %s : tensor<256x512xf32>
  %d = prim.dot %p, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [0]} : tensor<256x16xf32>
  %t = prim.dot %h, %p {batch_a = [], batch_b = [], contract_a = [0], contract_b = [0]} : tensor<16x512xf32>
  %g = prim.transpose %t {perm = [1, 0]} : tensor<512x16xf32>
  func.return %d, %g : tensor<256x16xf32>, tensor<512x16xf32>
}

// The matrix itself is wanted, or a number of each row depends on all rows.
// CHECK-LABEL: @whole
// CHECK:       prim.dot %h, %w {{.*}} : tensor<256x512xf32>
// CHECK-LABEL: @all_rows
// CHECK:       prim.dot %h, %w {{.*}} : tensor<256x512xf32>
func.func @whole(%h: tensor<256x16xf32>, %w: tensor<512x16xf32>) -> tensor<256x512xf32> {
  %z = prim.dot %h, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x512xf32>
  %p = prim.exp %z : tensor<256x512xf32>
  func.return %p : tensor<256x512xf32>
}
func.func @all_rows(%h: tensor<256x16xf32>, %w: tensor<512x16xf32>) -> tensor<256xf32> {
  %z = prim.dot %h, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<256x512xf32>
  %m = prim.reduce %z {kind = "max", dims = [0, 1]} : tensor<f32>
  %b = prim.broadcast %m {dims = []} : tensor<256x512xf32>
  %s = prim.sub %z, %b : tensor<256x512xf32>
  %r = prim.reduce %s {kind = "add", dims = [1]} : tensor<256xf32>
  func.return %r : tensor<256xf32>
}
