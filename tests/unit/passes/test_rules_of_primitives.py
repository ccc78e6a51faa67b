"""Patterns among primitives, as text: what matches, what comes in its place, what must stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import new_context
from isthmus.passes.pipelines import module_text
from isthmus.passes.rules.primitives import rewrite, root_of


def parsed(text: str) -> ModuleOp:
    return Parser(new_context(), text).parse_module()


def function(body: str, result: str, type_: str, arguments: str) -> str:
    listed = ", ".join(f"%{name}: tensor<{type_}>" for name in arguments)
    return f"func.func @main({listed}) -> tensor<{type_}> {{\n{body}\n  func.return %{result} : tensor<{type_}>\n}}"


def fma(type_: str) -> str:
    body = f"  %m = prim.mul %a, %b : tensor<{type_}>\n  %r = prim.add %m, %c : tensor<{type_}>"
    return function(body, "r", type_, "abc")


def difference(type_: str) -> str:
    body = f"  %d = prim.sub %a, %b : tensor<{type_}>\n  %e = prim.sub %d, %c : tensor<{type_}>"
    return function(body, "e", type_, "abc")


def made(make: object, types: Sequence[Attribute]) -> FuncOp:
    shapes = {("x".join([*map(str, ir.shape_of(t)), ir.dtype_of(t)])) for t in types}
    (type_,) = shapes
    return ir.function(parsed(make(type_)), "main")  # type: ignore[operator]


def rewritten(text: str) -> tuple[int, list[str]]:
    module = parsed(text)
    outline = ir.function(parsed(fma("4x4xf32")), "main")
    count = rewrite(module, outline, lambda types: made(fma, types), lambda types: made(difference, types))
    ir.verify(module)
    return count, [line.strip() for line in module_text(module).splitlines() if " = prim." in line]


def test_a_match_is_replaced_and_what_nothing_reads_is_gone() -> None:
    count, ops = rewritten(fma("7xf64"))
    assert count == 1
    assert [op.split(" = ")[1] for op in ops] == [
        "prim.sub %a, %b : tensor<7xf64>",
        f"prim.sub {ops[0].split()[0]}, %c : tensor<7xf64>",
    ]


def test_operands_of_sums_and_products_may_change_places() -> None:
    body = "  %m = prim.mul %b, %a : tensor<4xf32>\n  %r = prim.add %c, %m : tensor<4xf32>"
    count, ops = rewritten(function(body, "r", "4xf32", "abc"))
    assert count == 1 and "prim.sub %b, %a" in ops[0]


def test_what_is_read_elsewhere_stays() -> None:
    ops = ("%m = prim.mul %a, %b", "%n = prim.add %m, %c", "%r = prim.max %n, %m")
    body = "\n".join(f"  {op} : tensor<4xf32>" for op in ops)
    count, left = rewritten(function(body, "r", "4xf32", "abc"))
    assert count == 1
    assert sum("prim.mul" in op for op in left) == 1 and not any("prim.add" in op for op in left)


@pytest.mark.parametrize(
    "body",
    [
        "  %m = prim.mul %a, %b : tensor<4xf32>\n  %r = prim.sub %m, %c : tensor<4xf32>",  # another root
        "  %m = prim.div %a, %b : tensor<4xf32>\n  %r = prim.add %m, %c : tensor<4xf32>",  # another op below
        "  %r = prim.add %a, %b : tensor<4xf32>",  # a part of it
    ],
)
def test_other_programs_stay(body: str) -> None:
    assert rewritten(function(body, "r", "4xf32", "abc"))[0] == 0


def test_a_chain_is_matched_at_every_link() -> None:
    links = [("a", "r0"), ("r0", "r1"), ("r1", "r2")]
    body = "\n".join(
        f"  %m{y} = prim.mul %{x}, %b : tensor<4xf32>\n  %{y} = prim.add %m{y}, %c : tensor<4xf32>" for x, y in links
    )
    count, ops = rewritten(function(body, "r2", "4xf32", "abc"))
    assert count == 3 and len(ops) == 6


def test_a_pattern_must_compute_one_tensor_of_all_its_arguments() -> None:
    for text in (
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %a : tensor<4xf32>\n}",
        function("  %r = prim.add %a, %b : tensor<4xf32>", "r", "4xf32", "abc"),
    ):
        with pytest.raises(CompileError, match=r"a pattern gives one tensor|does not use its argument 2"):
            root_of(ir.function(parsed(text), "main"))
