"""A whole direction as one native function: `@run` and the parallel regions of its kernels, in LLVM text.

    i32 @run(ptr %arguments, ptr %outputs, ptr %temporary, ptr %saved, ptr %sizes, ptr %handles)

`arguments` and `outputs` are data pointers, `sizes` the values of the program's symbols, `handles` the tensors that
library calls make (null before). The status is 0 or 1 + the number of the step that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from isthmus.codegen.cpu.aten import aten_call
from isthmus.codegen.cpu.blas import emit_gemm, plan_gemm
from isthmus.codegen.cpu.dispatch import Dispatch, empty, keep, settle
from isthmus.codegen.cpu.dispatch_keys import exclude_keys, include_keys
from isthmus.codegen.cpu.frame import Frame
from isthmus.codegen.cpu.matmul import emit_matmul, plan_matmul
from isthmus.codegen.cpu.native_call import emit_call, has_call
from isthmus.codegen.cpu.region import emit_kernels, words_for
from isthmus.codegen.cpu.strided import copy_elements
from isthmus.codegen.llvm_text import I32, I64, PTR, Module, Value
from isthmus.dialects.native_facts import NativeFacts
from isthmus.dialects.program import Buffer, Copy, KernelCall, LibraryCall, Program, Route, Step

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
    _Steps(frame).emit()
    f.line("br label %exit")
    f.start("exit")
    include_keys(f, guard)
    f.finish(f.load(frame.status, I32))


class _Steps:
    """Writes the steps of a program one after the other."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._f, self._program = frame, frame.f, frame.program
        self._last_use = _last_uses(frame.program)

    def emit(self) -> None:
        """Write all steps."""
        runs = [list(run) for _, run in groupby(enumerate(self._program.steps), key=lambda s: _is_kernel(s[1]))]
        kernels = [[(k, s) for k, s in run if isinstance(s, KernelCall)] for run in runs]
        room = max((words_for([s for _, s in run]) for run in kernels), default=0)
        words = self._f.slot(I64, max(1, room), align=64)
        for number, (run, inside) in enumerate(zip(runs, kernels, strict=True)):
            if inside:
                emit_kernels(self._frame, words, inside, f"region_{number}")
                self._let_go(run[-1][0])
            for k, step in run if not inside else ():
                if isinstance(step, Copy):
                    copy_elements(self._frame, step.source, step.target)
                elif isinstance(step, LibraryCall):
                    self._library(k, step)
                self._let_go(k)

    def _let_go(self, step: int) -> None:
        """Free the tensors that nothing reads after a step."""
        f = self._f
        for handle in [h for h, last in self._last_use.items() if last <= step]:
            del self._last_use[handle]
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
                self._python_call(number, call, failed=True)
            keep(self._frame, settled, wanted)

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


def _is_kernel(step: Step) -> bool:
    return isinstance(step, KernelCall)


T = TypeVar("T")


def _known(found: T | None) -> T:
    assert found is not None, "the route of a call says that there is one"
    return found


def _last_uses(program: Program) -> dict[int, int]:
    """Handle -> the last step that touches it; without those that the program gives."""
    found: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelCall):
            buffers = step.buffers
        elif isinstance(step, LibraryCall):
            buffers = (*step.operands, *step.results)
        else:
            buffers = (step.source, step.target)
        for buffer in buffers:
            if buffer.place.kind == "handle":
                assert isinstance(buffer.place.at, int)
                found[buffer.place.at] = number
    given = {result.place.at for result in program.results if result.place.kind == "handle"}
    return {handle: last for handle, last in found.items() if handle not in given}
