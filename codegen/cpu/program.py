"""A whole direction as one native function: `@run` and the parallel regions of its kernels, in LLVM text.

    i32 @run(ptr %arguments, ptr %outputs, ptr %temporary, ptr %saved, ptr %sizes, ptr %handles)

`arguments` and `outputs` are data pointers, `sizes` the values of the program's symbols, `handles` the tensors that
library calls make (null before). The status is 0 or 1 + the number of the step that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from isthmus.codegen.cpu.aten import aten_call
from isthmus.codegen.cpu.blas import emit_gemm, plan_gemm
from isthmus.codegen.cpu.dispatch import Dispatch, empty, keep, settle
from isthmus.codegen.cpu.dispatch_keys import exclude_keys, include_keys
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.cpu.matmul import emit_matmul, plan_matmul
from isthmus.codegen.cpu.native_call import emit_call, has_call
from isthmus.codegen.cpu.region import emit_kernels, words_for
from isthmus.codegen.cpu.strided import copy_elements, exchange_elements
from isthmus.codegen.llvm_text import I8, I32, I64, PTR, Module, Value
from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import (
    Branch,
    Buffer,
    Copy,
    Exchange,
    KernelCall,
    LibraryCall,
    Loop,
    Program,
    Route,
    Step,
    flat,
    inside,
    touched,
)
from isthmus.sizes import Dim

PYTHON = "isthmus_python"
"""i32 (i64 program, i64 step, i32 failed, ptr operands, ptr results, ptr sizes): the runtime makes a call in Python,
or, where `failed` is 1, finds out why a call failed."""


def route_of(call: LibraryCall) -> Route:
    """Say how a call is made."""
    if call.symbol == "prim.dot":
        if plan_gemm(call) is not None:
            return "gemm"
        if plan_matmul(call) is not None:
            return "shim"
    return "dispatcher" if aten_call(call) is not None else "python"


def program_text(program: Program, facts: NativeFacts) -> str:
    """Give the LLVM text of a program: `@run`, and `@call` where torch's layout is known."""
    module = Module()
    emit_run(module, program, facts)
    if facts.layout is not None and has_call(program):
        emit_call(module, program, facts)
    return str(module)


def emit_run(module: Module, program: Program, facts: NativeFacts) -> None:
    """Write `@run` into a module."""
    frame = Frame(module, program)
    f = frame.f
    calls = any(c.route != "gemm" for c in program.library_calls)
    guard = exclude_keys(f, facts) if calls else None
    Steps(frame).emit(program.steps)
    f.line("br label %exit")
    f.start("exit")
    include_keys(f, guard)
    f.finish(f.load(frame.status, I32))


class Steps:
    """Writes the steps of a program one after the other, each with its number."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._f, self._program = frame, frame.f, frame.program
        self._given = {r.place.at for r in frame.program.results if r.place.kind == "handle"}
        self._words: Value | None = None
        self._number = 0
        self._regions = 0

    def emit(self, steps: Sequence[Step]) -> None:
        """Write steps; tensors that library calls make here are freed after their last use."""
        last_use = {h: k for h, k in _last_uses(steps).items() if h not in self._given}
        at = 0
        while at < len(steps):
            run = _kernels_from(steps, at)
            if run:
                self._kernels(self._number, run)
                self._number += len(run)
                at += len(run)
            else:
                number, self._number = self._number, self._number + 1
                self._single(number, steps[at])
                at += 1
            self._let_go(last_use, at - 1)

    def _kernels(self, first: int, run: Sequence[KernelCall]) -> None:
        """Write a run of kernels, of which the first has this number."""
        if self._words is None:
            self._words = self._f.slot(I64, max(1, _room(self._program.steps)), align=64)
        emit_kernels(self._frame, self._words, list(enumerate(run, first)), f"region_{self._regions}")
        self._regions += 1

    def _single(self, number: int, step: Step) -> None:
        if isinstance(step, Copy):
            copy_elements(self._frame, step.source, step.target)
        elif isinstance(step, Exchange):
            exchange_elements(self._frame, step)
        elif isinstance(step, LibraryCall):
            self._library(number, step)
        elif isinstance(step, Branch):
            self._branch(step)
        elif isinstance(step, Loop):
            self._loop(step)

    # ---- control flow

    def _branch(self, step: Branch) -> None:
        f = self._f
        yes, no, after = f.label("yes"), f.label("no"), f.label("joined")
        f.line(f"br {self._flag(step.condition)!r}, label %{yes}, label %{no}")
        for label, run in ((yes, step.then), (no, step.otherwise)):
            f.start(label)
            self.emit(run)
            f.line(f"br label %{after}")
        f.start(after)

    def _loop(self, step: Loop) -> None:
        f = self._f
        if step.flag is None:
            with f.loop(0, self._frame.size(step.count)) as turn:
                last = self._frame.size(step.count) - 1
                self._frame.symbols[step.variable] = last - turn if step.reverse else turn
                self.emit(step.body)
            return
        head, body, leave = f.label("while"), f.label("turn"), f.label("over")
        f.line(f"br label %{head}")
        f.start(head)
        self.emit(step.condition)
        f.line(f"br {self._flag(step.flag)!r}, label %{body}, label %{leave}")
        f.start(body)
        self.emit(step.body)
        f.line(f"br label %{head}")
        f.start(leave)

    def _flag(self, buffer: Buffer) -> Value:
        byte = self._f.load(self._frame.address(buffer), I8)
        return self._f.compare("ne", byte, 0)

    def _let_go(self, last_use: dict[int, int], at: int) -> None:
        """Free the tensors that nothing reads after a step."""
        f = self._f
        for handle in [h for h, last in last_use.items() if last <= at]:
            del last_use[handle]
            slot = self._frame.handle_slot(handle)
            f.call("aoti_torch_delete_tensor_object", I32, f.load(slot, PTR))
            f.store(self._null, slot)

    @property
    def _null(self) -> Value:
        return Value(self._f, "null", PTR)

    # ---- library calls

    def _library(self, number: int, call: LibraryCall) -> None:
        def check(status: Value) -> None:
            with self._frame.failing(self._f.compare("ne", status, 0), number):
                self._python_call(number, call, failed=True)

        if call.route == "dispatcher":
            self._dispatch(number, call, check)
        elif call.route == "python":
            self._python(number, call)
        else:
            for result in call.results:
                if result.place.kind == "handle":
                    keep(self._frame, empty(self._frame, result), result)
            if call.route == "gemm":
                emit_gemm(self._frame, call, _known(plan_gemm(call)))
            else:
                emit_matmul(self._frame, _known(plan_matmul(call)), check)

    def _dispatch(self, number: int, call: LibraryCall, check: Callable[[Value], None]) -> None:
        handles = Dispatch(self._frame, call, _known(aten_call(call))).emit(check)
        for handle, wanted in zip(handles, call.results, strict=True):
            settled = settle(self._frame, handle, wanted, call.operands)
            with self._frame.failing(self._f.compare("eq", settled, self._null), number):
                self._refused(number, call)
            keep(self._frame, settled, wanted)

    def _refused(self, number: int, call: LibraryCall) -> None:
        """A result is not what the program was compiled for: the runtime says so."""
        self._python_call(number, call, failed=True)

    def _python(self, number: int, call: LibraryCall) -> None:
        """Let the runtime make the call; it writes results into memory, or gives new tensors."""
        status, results = self._python_call(number, call, failed=False)
        with self._frame.failing(self._f.compare("ne", status, 0), number):
            pass
        for k, wanted in enumerate(call.results):
            if wanted.place.kind == "handle":
                keep(self._frame, self._f.load(self._f.address(results, k, "ptr"), PTR), wanted)

    def _python_call(self, number: int, call: LibraryCall, *, failed: bool) -> tuple[Value, Value]:
        f, frame = self._f, self._frame
        operands = self._addresses(call.operands)
        results = self._addresses(call.results, made="later")
        arguments = (frame.program_number, f.const(number, I64), f.const(int(failed), I32))
        return f.call(PYTHON, I32, *arguments, operands, results, frame.sizes_array), results

    def _addresses(self, buffers: Sequence[Buffer], made: str = "before") -> Value:
        """An array of data pointers, null for tensors that are still to be made."""
        f = self._f
        array = f.slot(PTR, max(1, len(buffers)), align=8)
        for k, buffer in enumerate(buffers):
            unmade = made == "later" and buffer.place.kind == "handle"
            f.store(self._null if unmade else self._frame.address(buffer), f.address(array, k, "ptr"))
        return array


def _kernels_from(steps: Sequence[Step], at: int) -> list[KernelCall]:
    """The run of kernels that begins at a step.

    It ends before a kernel that writes an argument in place if one in it can fail: the caller's tensors are as they
    were when an error is raised.
    """
    run: list[KernelCall] = []
    can_fail = False
    for step in steps[at:]:
        if not isinstance(step, KernelCall) or (can_fail and _writes_arguments(step)):
            break
        run.append(step)
        can_fail |= step.checks is not None
    return run


def _writes_arguments(kernel: KernelCall) -> bool:
    return any(b.place.kind == "argument" for b in kernel.buffers[kernel.reads :])


def _room(steps: Sequence[Step]) -> int:
    """Words for the longest run of kernels."""
    most, at = 0, 0
    while at < len(steps):
        run = _kernels_from(steps, at)
        most = max(most, words_for(run), *(_room(held) for held in inside(steps[at])), 0)
        at += max(1, len(run))
    return most


T = TypeVar("T")


def _known(found: T | None) -> T:
    assert found is not None, "the route of a call says that there is one"
    return found


def _last_uses(steps: Sequence[Step]) -> dict[int, int]:
    """Handle -> the last of these steps that touches it, for those that are made here and not inside one of them."""
    found: dict[int, int] = {}
    made: set[Dim] = set()
    for number, step in enumerate(steps):
        if isinstance(step, LibraryCall):
            made |= {r.place.at for r in step.results if r.place.kind == "handle"}
        for part in flat([step]):
            for buffer in touched(part):
                if buffer.place.kind == "handle":
                    assert isinstance(buffer.place.at, int)
                    found[buffer.place.at] = number
    return {handle: last for handle, last in found.items() if handle in made}
