"""Kernels that every model has, as text: rows of 1024 f32."""

from __future__ import annotations

from kernel_text import PARALLEL, ROW, function, tensor

N, D = 64, 1024
MATRIX, ROW_OF = tensor([N, D]), tensor([D])

_SOFTMAX = """
    %v = kernel.load {operand = 0, map = [d0, d1]} : f32
    %r = kernel.reduce %v {kind = "max", dims = [1]} : f32
    %d = prim.sub %v, %r : f32
    %e = prim.exp %d {residence = "keep"} : f32
    %s = kernel.reduce %e {kind = "add", dims = [1]} : f32
    %q = prim.div %e, %s : f32
    kernel.store %q {result = 0, map = [d0, d1]}"""

_LAYER_NORM = f"""
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %w = kernel.load {{operand = 1, map = [d1]}} : f32
    %b = kernel.load {{operand = 2, map = [d1]}} : f32
    %s = kernel.reduce %v {{kind = "add", dims = [1]}} : f32
    %n = prim.const {{value = {1 / D}}} : f32
    %eps = prim.const {{value = 0.00001}} : f32
    %mu = prim.mul %s, %n : f32
    %d = prim.sub %v, %mu : f32
    %d2 = prim.mul %d, %d : f32
    %s2 = kernel.reduce %d2 {{kind = "add", dims = [1]}} : f32
    %var = prim.fma %s2, %n, %eps : f32
    %rs = prim.rsqrt %var : f32
    %h = prim.mul %d, %rs : f32
    %y = prim.fma %h, %w, %b : f32
    kernel.store %y {{result = 0, map = [d0, d1]}}
    kernel.store %mu {{result = 1, map = [d0]}}
    kernel.store %rs {{result = 2, map = [d0]}}"""

_LAYER_NORM_BACKWARD = f"""
    %x = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %w = kernel.load {{operand = 1, map = [d1]}} : f32
    %g = kernel.load {{operand = 2, map = [d0, d1]}} : f32
    %mu = kernel.load {{operand = 3, map = [d0]}} : f32
    %rs = kernel.load {{operand = 4, map = [d0]}} : f32
    %n = prim.const {{value = {1 / D}}} : f32
    %d = prim.sub %x, %mu : f32
    %h = prim.mul %d, %rs : f32
    %gw = prim.mul %g, %w : f32
    %gh = prim.mul %gw, %h : f32
    %s1 = kernel.reduce %gw {{kind = "add", dims = [1]}} : f32
    %s2 = kernel.reduce %gh {{kind = "add", dims = [1]}} : f32
    %m1 = prim.mul %s1, %n : f32
    %m2 = prim.mul %s2, %n : f32
    %a = prim.sub %gw, %m1 : f32
    %b = prim.mul %h, %m2 : f32
    %c = prim.sub %a, %b : f32
    %dx = prim.mul %c, %rs : f32
    %dg = prim.mul %g, %h : f32
    kernel.store %dx {{result = 0, map = [d0, d1]}}
    kernel.accumulate %dg {{result = 1, kind = "add", map = [d1]}}
    kernel.accumulate %g {{result = 2, kind = "add", map = [d1]}}"""

_GELU = """
    %x = kernel.load {operand = 0, map = [d0, d1]} : f32
    %b = kernel.load {operand = 1, map = [d1]} : f32
    %r = kernel.load {operand = 2, map = [d0, d1]} : f32
    %u = prim.add %x, %b : f32
    %c = prim.const {value = 0.7071067811865476} : f32
    %h = prim.const {value = 0.5} : f32
    %one = prim.const {value = 1.0} : f32
    %z = prim.mul %u, %c : f32
    %e = prim.erf %z : f32
    %e1 = prim.add %e, %one : f32
    %uh = prim.mul %u, %h : f32
    %y = prim.fma %uh, %e1, %r : f32
    kernel.store %y {result = 0, map = [d0, d1]}"""


def _rows(arguments, results, body, partitions=4) -> str:
    return function(arguments, results, [N, D], [PARALLEL, ROW], body, partitions=partitions, vector=1)


SOFTMAX = _rows([MATRIX], [MATRIX], _SOFTMAX)
LAYER_NORM = _rows([MATRIX, ROW_OF, ROW_OF], [MATRIX, tensor([N]), tensor([N])], _LAYER_NORM)
LAYER_NORM_BACKWARD = _rows(
    [MATRIX, ROW_OF, MATRIX, tensor([N]), tensor([N])],
    [MATRIX, tensor([4, D]), tensor([4, D])],
    _LAYER_NORM_BACKWARD,
)
GELU = _rows([MATRIX, ROW_OF, MATRIX], [MATRIX], _GELU)
