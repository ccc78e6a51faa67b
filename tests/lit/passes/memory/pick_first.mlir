// RUN: isthmus-opt %s -p pick-first{least=1024} | filecheck %s
// RUN: isthmus-opt %s -p 'pick-first{least=1024},schedule-gpu,plan-memory' | filecheck %s --check-prefix=PLANNED
// RUN: isthmus-opt %s -p 'schedule-gpu,plan-memory' | filecheck %s --check-prefix=BEFORE

// The element of each row that the loss is about is read before the gradient is written, so that this has the place of
// the logits.
// CHECK-LABEL: @loss
// CHECK:       %[[Z:.*]] = kernel.extern %h, %w
// CHECK-NEXT:  %[[P:.*]] = kernel.fused %t, %[[Z]] {sizes = [256], classes = ["parallel"]} ({
// CHECK-NEXT:    %[[I:.*]] = kernel.load {operand = 0, map = [d0]} : i64
// CHECK-NEXT:    %[[C:.*]] = kernel.check %[[I]] {bound = 512, dim = 1} : i64
// CHECK-NEXT:    %[[E:.*]] = kernel.load %[[C]] {operand = 1, map = [d0, v0]} : bf16
// CHECK-NEXT:    kernel.store %[[E]] {result = 0, map = [d0]}
// CHECK-NEXT:  }) : tensor<256xbf16>
// CHECK-NEXT:  %{{.*}}, %[[M:.*]] = kernel.fused %[[Z]] {sizes = [256, 512]
// CHECK:       kernel.fused %[[M]], %[[P]] {sizes = [256], classes = ["row"]} ({
// CHECK-NEXT:    kernel.load {operand = 1, map = [d0]} : bf16
// CHECK-NOT:     kernel.check
// CHECK:         kernel.store

// PLANNED-LABEL: @loss
// PLANNED:       kernel.extern {{.*}}places = {{\[\[}}"temporary", [[PLACE:[0-9]+]]]]
// PLANNED:       kernel.fused {{.*}}sizes = [256, 512]{{.*}}places = {{\[\[}}"temporary", [[PLACE]]], ["temporary",

// BEFORE-LABEL: @loss
// BEFORE:       kernel.extern {{.*}}places = {{\[\[}}"temporary", [[PLACE:[0-9]+]]]]
// BEFORE-NOT:   sizes = [256, 512]{{.*}}places = {{\[\[}}"temporary", [[PLACE]]],
func.func @loss(%h: tensor<256x64xbf16>, %w: tensor<512x64xbf16>, %t: tensor<256xi64>) -> (tensor<f32>, tensor<256x64xbf16>) {
  %z = kernel.extern %h, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [1]]], cost = 1.0} : tensor<256x512xbf16>
  %d, %m = kernel.fused %z {sizes = [256, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : bf16
    %r = kernel.reduce %v {kind = "max", dims = [1]} : bf16
    %s = prim.sub %v, %r : bf16
    kernel.store %s {result = 0, map = [d0, d1]}
    kernel.store %r {result = 1, map = [d0]}
  }) : tensor<256x512xbf16>, tensor<256xbf16>
  %l = kernel.fused %t, %z, %m {sizes = [256], classes = ["row"]} ({
    %i = kernel.load {operand = 0, map = [d0]} : i64
    %c = kernel.check %i {bound = 512, dim = 1} : i64
    %e = kernel.load %c {operand = 1, map = [d0, v0]} : bf16
    %b = kernel.load {operand = 2, map = [d0]} : bf16
    %x = prim.sub %b, %e : bf16
    %f = prim.convert %x : f32
    %q = kernel.reduce %f {kind = "add", dims = [0]} : f32
    kernel.store %q {result = 0, map = []}
  }) : tensor<f32>
  %g = kernel.extern %d, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]], cost = 1.0} : tensor<256x64xbf16>
  func.return %l, %g : tensor<f32>, tensor<256x64xbf16>
}

// Places that are known only after the tensor was walked stay where they are.
// CHECK-LABEL: @known_later
// CHECK:       kernel.fused %{{.*}} {sizes = [256, 512]
// CHECK:       kernel.fused %{{.*}} {sizes = [256]
// CHECK-NOT:   kernel.fused
func.func @known_later(%h: tensor<256x64xbf16>, %w: tensor<512x64xbf16>) -> (tensor<256xbf16>, tensor<256x64xbf16>) {
  %z = kernel.extern %h, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [1]]], cost = 1.0} : tensor<256x512xbf16>
  %d, %a = kernel.fused %z {sizes = [256, 512], classes = ["parallel", "row"]} ({
    %v = kernel.load {operand = 0, map = [d0, d1]} : bf16
    %r = kernel.reduce %v {kind = "max", dims = [1]} : bf16
    %s = prim.sub %v, %r : bf16
    %k = prim.convert %r : i64
    kernel.store %s {result = 0, map = [d0, d1]}
    kernel.store %k {result = 1, map = [d0]}
  }) : tensor<256x512xbf16>, tensor<256xi64>
  %l = kernel.fused %a, %z {sizes = [256], classes = ["parallel"]} ({
    %i = kernel.load {operand = 0, map = [d0]} : i64
    %c = kernel.check %i {bound = 512, dim = 1} : i64
    %e = kernel.load %c {operand = 1, map = [d0, v0]} : bf16
    kernel.store %e {result = 0, map = [d0]}
  }) : tensor<256xbf16>
  %g = kernel.extern %d, %w {symbol = "prim.dot", args = [["batch_a", []], ["batch_b", []], ["contract_a", [1]], ["contract_b", [0]]], cost = 1.0} : tensor<256x64xbf16>
  func.return %l, %g : tensor<256xbf16>, tensor<256x64xbf16>
}
