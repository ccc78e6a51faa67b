"""Code for any length: pointwise kernels that differ in their sizes share it, to the bit."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.codegen.cpu.flat import flattened
from isthmus.codegen.cpu.kernel import emit_kernel
from isthmus.codegen.cpu.program import program_text
from isthmus.codegen.cpu.read_program import kernels_of, read_program
from isthmus.codegen.llvm_text import Module
from isthmus.dialects import kernel, new_context
from isthmus.runtime import build, cpu
from isthmus.runtime.layout import native_facts


def update(shape: tuple[int, ...], number: int, *, place: str = "", parts: int = 1) -> str:
    """y = tanh(x) * c[3] over a shape, as a scheduled kernel."""
    dims, type_ = ", ".join(f"d{k}" for k in range(len(shape))), "x".join(map(str, shape))
    classes = ", ".join(['"parallel"'] * (len(shape) - 1) + (['"row"'] if len(shape) > 1 else ['"parallel"']))
    return f"""
  %y{number} = kernel.fused %a{number}, %c {{sizes = {list(shape)}, classes = [{classes}], partitions = {parts},
      vector = {len(shape) - 1}, width = 8, unroll = 2, places = [["output", {number}]]}} ({{
    %v = kernel.load {{operand = 0, map = [{place or dims}]}} : f32
    %w = kernel.load {{operand = 1, map = [3]}} : f32
    %t = prim.tanh %v : f32
    %s = prim.mul %t, %w : f32
    kernel.store %s {{result = 0, map = [{dims}]}}
  }}) : tensor<{type_}xf32>"""


def program(*shapes: tuple[int, ...], strides: str = "") -> FuncOp:
    types = [f"tensor<{'x'.join(map(str, s))}xf32>" for s in shapes]
    arguments = ", ".join(f"%a{k}: {t}{strides if k == 0 else ''}" for k, t in enumerate(types))
    body = "".join(update(s, k, parts=1 + shapes.index(s)) for k, s in enumerate(shapes))
    results = ", ".join(f"%y{k}" for k in range(len(shapes)))
    text = f"""
func.func @main({arguments}, %c: tensor<5xf32>) -> ({", ".join(types)}) {{{body}
  func.return {results} : {", ".join(types)}
}}"""
    return ir.function(Parser(new_context(), text).parse_module(), "main")


def run(func: FuncOp, tensors: list[Tensor]) -> list[Tensor]:
    target = cpu.host_target()
    made = read_program(func)

    def text(op: kernel.LoopNest) -> str:
        module = Module(vector_bits=target.vector_bits)
        emit_kernel(module, op, target)
        return str(module)

    kernels = {name: (lambda op=op: text(op)) for name, op in kernels_of(func).items()}
    return build.build(made, program_text(made, native_facts()), kernels, target)(list(tensors))


SHAPES = ((3, 70), (129,), (2, 3, 5), (1, 64), (16,))


def test_unlike_shapes_share_one_code_and_keep_every_bit() -> None:
    func = program(*SHAPES)
    assert len(kernels_of(func)) == 1
    calls = read_program(func).kernel_calls
    assert [c.symbols for c in calls] == [(210, 1), (129, 2), (30, 3), (64, 4), (16, 5)]
    torch.manual_seed(0)
    tensors, c = [torch.randn(s) for s in SHAPES], torch.randn(5)
    together = run(func, [*tensors, c])
    for k, (x, y) in enumerate(zip(tensors, together, strict=True)):
        (alone,) = run(program(SHAPES[k]), [x, c])
        assert torch.equal(alone, y)
        torch.testing.assert_close(y, torch.tanh(x) * c[3])


def test_one_set_of_sizes_keeps_the_shorter_code() -> None:
    func = program((3, 70), (3, 70))
    (op,) = kernels_of(func).values()
    assert op.symbols_ == ()
    assert [c.symbols for c in read_program(func).kernel_calls] == [(), ()]


def first(func: FuncOp) -> kernel.FusedOp:
    return next(op for op in func.walk() if isinstance(op, kernel.FusedOp))


def test_memory_in_one_piece_is_walked_in_any_order_of_the_dims() -> None:
    assert flattened(first(program((3, 70)))) is not None
    turned = " {isthmus.strides = #isthmus.lit<[1, 3]>}"
    assert flattened(first(program((3, 70), strides=turned))) is None  # its result is row-major


@pytest.mark.parametrize("place", ["d0, 0", "0, d1", "d0, (d1 + 1) mod 70"])
def test_other_places_have_no_code_for_any_length(place: str) -> None:
    text = "func.func @main(%a0: tensor<3x70xf32>, %c: tensor<5xf32>) -> tensor<3x70xf32> {"
    text += update((3, 70), 0, place=place) + "\n  func.return %y0 : tensor<3x70xf32>\n}"
    assert flattened(first(ir.function(Parser(new_context(), text).parse_module(), "main"))) is None


def test_what_is_remembered_of_a_function_does_not_keep_it() -> None:
    gone: list[weakref.ref[FuncOp]] = []
    for _ in range(3):
        func = program((4,), (8,))
        read_program(func)
        gone.append(weakref.ref(func))
        del func
    gc.collect()
    assert [f() is None for f in gone] == [True, True, False]
