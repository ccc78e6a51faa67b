"""Compilers of one direction: what makes a function at prim level callable, the built-in ones by name or the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.dialects.func import FuncOp

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects.signature import Signature
from isthmus.runtime.convention import Executable, Value
from isthmus.runtime.interpret_table import DTYPES
from isthmus.sizes import Dim, evaluate

Example: TypeAlias = Tensor | int
"""Stands for one argument: a tensor on the device "meta" with its sizes, strides and dtype, or a size."""

Compiler: TypeAlias = Callable[[ModuleOp, Sequence[Example]], Callable[[list[Value]], Sequence[Tensor]]]
"""`compiler(module, examples)`: the module holds one function of primitives; gives what runs it, from a list of
arguments to the list of all its results in order."""

BUILT_IN = ("native", "interpret")
"""native: machine code; interpret: the reference interpreter."""

GUESS = 8
"""What a size symbol without an example value is taken for."""


def function_of(module: ModuleOp) -> FuncOp:
    """Give the only function of a module; CompileError when there is not exactly one."""
    functions = list(ir.functions(module).values())
    if len(functions) != 1:
        raise CompileError(f"a compiler takes a module of one function, not of {len(functions)}")
    return functions[0]


def examples_of(func: FuncOp, hints: Mapping[str, int]) -> list[Example]:
    """Give an example for each argument; symbols have their example values from the first call."""

    def number(size: Dim) -> int:
        if isinstance(size, int):
            return size
        return evaluate(size, {name: hints.get(name, GUESS) for name in size.symbols()})

    found: list[Example] = []
    for value, role in zip(func.body.block.args, Signature.of(func).arguments, strict=True):
        if isinstance(value.type, IndexType):
            found.append(hints.get(role.symbol or "", GUESS))
            continue
        shape = ir.shape_of(value)
        strides = role.strides or ir.contiguous_strides(shape)
        sizes, steps = [number(d) for d in shape], [number(d) for d in strides]
        found.append(torch.empty_strided(sizes, steps, dtype=DTYPES[ir.dtype_of(value)], device="meta"))
    return found


class Checked:
    """What a user's compiler gave; its results are counted, their dtypes and known sizes compared at every call."""

    def __init__(self, run: Callable[[list[Value]], Sequence[Tensor]], func: FuncOp, who: str) -> None:
        self._run = run
        types = func.function_type.outputs.data
        self._dtypes = [DTYPES[ir.dtype_of(t)] for t in types]
        self._shapes = [tuple(n if isinstance(n, int) else None for n in ir.shape_of(t)) for t in types]
        self._who = who
        self.fresh = bool(getattr(run, "fresh", False))
        self.native = bool(getattr(run, "native", False))

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run; CompileError where the results are not those of the function."""
        results: object = self._run(arguments)
        if not isinstance(results, (list, tuple)):
            raise CompileError(f"{self._who} gave a function that returns {type(results).__name__}", cure=_LIST)
        listed = list(cast("Sequence[Tensor]", results))
        found = [getattr(r, "dtype", type(r).__name__) for r in listed]
        if found != self._dtypes:
            raise CompileError(f"{self._who} gave a function that returns {found}, not {self._dtypes}", cure=_LIST)
        for number, (result, shape) in enumerate(zip(listed, self._shapes, strict=True)):
            sizes = tuple(result.shape)
            if len(sizes) != len(shape) or any(n not in (m, None) for m, n in zip(sizes, shape, strict=True)):
                got, wanted = list(sizes), [("?" if n is None else n) for n in shape]
                what = f"{self._who} gave a function whose result {number} has the shape {got}, not {wanted}"
                raise CompileError(what, cure=_LIST)
        return listed


_LIST = "return a list of tensors, one for each result of the function"


def compiled_by(compiler: Compiler, module: ModuleOp, hints: Mapping[str, int]) -> Executable:
    """Hand a copy of the module to a user's compiler; CompileError names it where it gives nothing callable."""
    own = module.clone()
    func = function_of(own)
    who = f"the compiler {place_of(compiler)}"
    run = compiler(own, examples_of(func, hints))
    if not callable(run):
        raise CompileError(f"{who} gave {type(run).__name__}", cure="return a callable")
    return cast(Executable, Checked(run, function_of(module), who))


def place_of(function: object) -> str:
    """Name a function and where it stands: `'f' (model.py:12)`."""
    plain = inspect.unwrap(cast("Callable[..., object]", getattr(function, "_init_fn", function)))  # of a custom_op
    name = getattr(plain, "__qualname__", type(plain).__name__)
    code = getattr(getattr(plain, "__func__", plain), "__code__", None)
    return f"'{name}'" if code is None else f"'{name}' ({code.co_filename}:{code.co_firstlineno})"


def compiler(name: str) -> Compiler:
    """Give a built-in compiler: "native" or "interpret"; ValueError for another name.

    It takes a module with one function of primitives (`module`, `examples`) and gives what runs it. For use inside a
    compiler of one's own: look at the module, change it, then hand it on.
    """
    if name not in BUILT_IN:
        raise ValueError(f"compiler {name!r} is none of {', '.join(map(repr, BUILT_IN))}")

    def built_in(module: ModuleOp, examples: Sequence[Example]) -> Executable:
        from isthmus.driver.artifacts import Record
        from isthmus.driver.lowering import Lowering
        from isthmus.driver.options import Options

        return Lowering(Options(backend=name), Record()).built_in(module, function_of(module).sym_name.data)

    return built_in
