"""The text of a direction: where threads meet, what is freed when, which words a table holds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from isthmus.codegen.cpu.program import program_text, route_of
from isthmus.codegen.cpu.region import Touched
from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import Argument, Buffer, Copy, KernelCall, LibraryCall, Place, Program, flat
from isthmus.ir import Operand, Shape, contiguous_strides
from isthmus.sizes import Dim, Size

FACTS = NativeFacts()


def buffer(kind: str, at: Dim, shape: Shape = (8,), dtype: str = "f32") -> Buffer:
    return Buffer(Place(kind, at), dtype, shape, contiguous_strides(shape))  # type: ignore[arg-type]


X, Y = buffer("argument", 0), buffer("argument", 1)
OUT = [buffer("output", k) for k in range(3)]


def kernel(reads: list[Buffer], writes: list[Buffer], partitions: Dim = 4, name: str = "kernel_a") -> KernelCall:
    return KernelCall(name, (*reads, *writes), len(reads), partitions=partitions)


def program(*steps: object, **more: object) -> Program:
    arguments = tuple(Argument("f32", (8,), (1,)) for _ in range(2))
    return Program("main", arguments, tuple(OUT), 3, steps, **more)  # type: ignore[arg-type]


def barriers(*steps: KernelCall) -> int:
    return program_text(program(*steps), FACTS).count("call void @GOMP_barrier")


def test_kernels_that_depend_on_each_other_meet_at_a_barrier() -> None:
    a, b = buffer("temporary", 0), buffer("temporary", 64)
    assert barriers(kernel([X], [a]), kernel([a], [OUT[0]])) == 1
    assert barriers(kernel([X], [a]), kernel([Y], [b])) == 0
    assert barriers(kernel([X], [a]), kernel([Y], [b]), kernel([a, b], [OUT[0]])) == 1
    assert barriers(kernel([a], [OUT[0]]), kernel([X], [a])) == 1  # memory is reused


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (([X], ["temporary", 0]), ([X], ["temporary", 32]), False),
        (([X], ["temporary", 0]), ([X], ["temporary", 28]), True),
        (([X], ["saved", 0]), ([X], ["temporary", 0]), False),
        (([X], ["output", 0]), ([X], ["output", 1]), False),
        (([X], ["argument", 0]), ([Y], ["output", 1]), True),  # arguments may share storage
        (([X], ["temporary", Size.symbol("s0")]), ([X], ["temporary", 0]), True),
        (([X], ["handle", 0]), ([X], ["handle", 1]), False),
    ],
)
def test_conflicts(first: object, second: object, expected: bool) -> None:
    def call(spec: object) -> KernelCall:
        reads, (kind, at) = spec  # type: ignore[misc]
        return kernel(reads, [buffer(kind, at)])

    def meet(one: object, other: object) -> bool:
        touched = Touched()
        touched.add(call(one))
        return touched.meets(call(other))

    assert meet(first, second) == meet(second, first) == expected


def test_arguments_of_different_storages_are_written_at_once() -> None:
    """Updates of parameters: each reads and writes its own."""
    x, y = ([buffer("argument", k)] for k in range(2))

    def text(*storages: int) -> str:
        arguments = tuple(Argument("f32", (8,), (1,), storage=s) for s in storages)
        return program_text(replace(program(kernel(x, x), kernel(y, y)), arguments=arguments), FACTS)

    assert text(0, 1).count("call void @GOMP_barrier") == 0
    assert text(0, 0).count("call void @GOMP_barrier") == 1


def test_uncut_kernels_around_a_region_start_no_thread() -> None:
    a, b = buffer("temporary", 0), buffer("temporary", 64)
    uncut = kernel([X], [a], 1, "kernel_b")
    text = program_text(program(uncut, kernel([a], [b]), replace(uncut, buffers=(b, OUT[0]))), FACTS)
    region = re.search(r"define internal void @region_0.*?^}", text, re.S | re.M)
    assert region is not None and "kernel_b" not in region[0] and "kernel_a" in region[0]
    assert "GOMP_parallel" not in program_text(program(uncut), FACTS)


def test_unknown_partitions_decide_at_run_time() -> None:
    s = Size.symbol("s0")
    text = program_text(_symbolic(s), FACTS)
    assert "select i1" in text and "GOMP_parallel" in text


def _symbolic(s: Dim) -> Program:
    from isthmus.dialects.program import SizeSource

    base = program(kernel([X], [OUT[0]], s))
    return replace(base, arguments=(Argument("f32", (s,), (1,)), base.arguments[1]), symbols=(SizeSource("s0", 0, 0),))


def test_tensors_of_library_calls_are_freed_after_their_last_use() -> None:
    made = buffer("handle", 0)
    call = LibraryCall("aten.exp.default", (X,), (made,), (Operand(0),), schema="exp(Tensor self) -> Tensor")
    call = replace(call, route=route_of(call))
    use, other = kernel([made], [OUT[0]], 1), Copy(Y, OUT[1])
    text = program_text(program(call, use, other, Copy(Y, OUT[2]), handles=1), FACTS)
    freed = text.index("store ptr null, ptr %handles")
    assert text.index("call void @kernel_a") < freed < text.index("call void @llvm.memmove")
    given = replace(program(call, handles=1), results=(made,), kept=1)
    assert "store ptr null, ptr %handles" not in program_text(given, FACTS)


def test_text_is_the_same_every_time() -> None:
    steps = (kernel([X], [OUT[0]]), Copy(Y, OUT[1]))
    assert program_text(program(*steps), FACTS) == program_text(program(*steps), FACTS)


def test_equal_constants_are_written_once() -> None:
    views = [
        LibraryCall(
            "prim.dot",
            (buffer("argument", 0, (2, 4)), buffer("argument", 1, (4, 2))),
            (buffer("output", k, (2, 2)),),
            (("batch_a", ()), ("batch_b", ()), ("contract_a", (1,)), ("contract_b", (0,))),
            "gemm",
        )
        for k in range(3)
    ]
    text = program_text(program(*views), FACTS)
    constants = re.findall(r"^(@c\d+) = private unnamed_addr constant (.*)$", text, re.M)
    assert len({value for _, value in constants}) == len(constants) > 0
    assert text.count("call void @sgemm_") == 3


def test_steps_are_numbered_with_those_they_hold() -> None:
    from isthmus.dialects.program import Branch, Loop

    inner = Copy(X, OUT[0])
    loop = Loop((inner, kernel([X], [OUT[1]])), count=3, variable="t")
    steps = (Copy(Y, OUT[2]), Branch(X, (loop,), (inner,)), inner)
    whole = program(*steps)
    assert [type(s).__name__ for s in flat(steps)] == ["Copy", "Branch", "Loop", "Copy", "KernelCall", "Copy", "Copy"]
    assert whole.step(4) is loop.body[1] and whole.kernels == ("kernel_a",)
