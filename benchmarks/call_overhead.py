"""What a compiled call costs beside its work: the native call by its two ways, the tape node, both captures.

    python benchmarks/call_overhead.py

Programs are tiny, so that all of the time is overhead; each figure is the quickest of many short runs in one process.
"""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor
from xdsl.parser import Parser

import isthmus
from isthmus import ir
from isthmus.codegen.cpu.program import program_text
from isthmus.codegen.cpu.read_program import kernels_of, read_program
from isthmus.dialects import new_context
from isthmus.dialects.native_facts import NativeFacts
from isthmus.driver.native import kernel_text
from isthmus.runtime import build, cpu
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.boundary import CompiledFunction
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.convention import Convention, Source, UserOutput
from isthmus.runtime.layout import native_facts


def microseconds(run: Callable[[], object], number: int = 50, repeat: int = 400) -> float:
    """Give the time of one run."""
    return min(timeit.repeat(run, number=number, repeat=repeat)) / number * 1e6


def sum_of(count: int) -> str:
    """A function that adds the first two of `count` tensors."""
    arguments = ", ".join(f"%a{k}: tensor<8x8xf32>" for k in range(count))
    return f"""
func.func @main({arguments}) -> tensor<8x8xf32> {{
  %y = kernel.fused %a0, %a1 {{sizes = [8, 8], classes = ["parallel", "parallel"], places = [["output", 0]]}} ({{
    %v = kernel.load {{operand = 0, map = [d0, d1]}} : f32
    %w = kernel.load {{operand = 1, map = [d0, d1]}} : f32
    %s = prim.add %v, %w : f32
    kernel.store %s {{result = 0, map = [d0, d1]}}
  }}) : tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}}
"""


def native(text: str, facts: NativeFacts) -> NativeProgram:
    """Compile a function at the kernel level."""
    func = ir.function(Parser(new_context(), text).parse_module(), "main")
    program = read_program(func)
    target = cpu.host_target()
    kernels = {name: (lambda op=op: kernel_text(op, target)) for name, op in kernels_of(func).items()}
    return build.build(program, program_text(program, facts), kernels, target)


def main() -> None:
    """Print the table."""
    fast, slow = native_facts(), NativeFacts(native_facts().excluded_keys, None)
    print(f"{'':46}{'us':>8}")
    tensors = [torch.randn(8, 8) for _ in range(100)]
    a, b = tensors[:2]
    row("eager: one addition", lambda: a + b)
    for count in (3, 12, 100):
        program, arguments = native(sum_of(count), fast), list(tensors[:count])
        row(f"native call, {count} tensors", lambda p=program, x=arguments: p(x))
    by_pointers = native(sum_of(3), slow)
    row("the same by pointers that Python reads, 3", lambda: by_pointers(list(tensors[:3])))
    tape(native(sum_of(3), fast), tensors[:3])
    captures(torch.randn(8))


def tape(program: NativeProgram, tensors: list[Tensor]) -> None:
    """The tape node around the same program."""
    convention = Convention(
        arguments=3,
        results=1,
        outputs=(UserOutput("value", 0),),
        differentiable=(0,),
        backward=(Source("tangent", 0),),
        gradients=(0,),
    )

    class Backward:
        native = fresh = True

        def __call__(self, arguments: list[object], /) -> list[Tensor]:
            return [arguments[0]]  # type: ignore[list-item]

    compiled = CompiledFunction(convention, TapeNode(convention, program, Backward))
    x, seed = tensors[0].clone().requires_grad_(), torch.ones(8, 8)
    rest = tensors[1:]
    row("eager: one addition on the tape", lambda: x + rest[0])
    row("tape node, forward", lambda: compiled([x, *rest]))
    row("eager: addition and its gradient", lambda: torch.autograd.grad(x + rest[0], x, seed))
    row("tape node and its gradient", lambda: torch.autograd.grad(compiled([x, *rest])[0], x, seed))  # type: ignore[arg-type]


def captures(x: Tensor, rounds: int = 60, number: int = 300) -> None:
    """sin(x) + 1 without gradients through each capture, beside Dynamo with a backend that computes nothing.

    They take turns, and CPU time counts: the tenth quickest of a hundred short runs of each.
    """

    def function() -> Callable[[Tensor], Tensor]:
        def fn(x: Tensor) -> Tensor:
            return torch.sin(x) + 1

        return fn

    answer = (torch.sin(x) + 1,)
    empty = torch.compile(function(), backend=lambda graph, examples: lambda *arguments: answer)
    contestants = {
        "eager: sin(x) + 1": function(),
        "Dynamo, a backend that computes nothing": empty,
        "isthmus through Dynamo": isthmus.compile(function()),
        'isthmus, capture="trace"': isthmus.compile(function(), capture="trace"),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    with torch.no_grad():
        for name, run in list(contestants.items()) * (rounds + 1):
            begin = time.process_time()
            for _ in range(number):
                run(x)
            times[name].append((time.process_time() - begin) / number * 1e6)
    for name, found in times.items():
        print(f"{name:46}{sorted(found[1:])[rounds // 10]:8.2f}")


def row(name: str, run: Callable[[], object]) -> None:
    """Print one line."""
    print(f"{name:46}{microseconds(run):8.2f}")


if __name__ == "__main__":
    main()
