"""From a captured program to something that runs: the passes of each stage, and a tape node that compiles on demand.

captured aten --functionalize, decompose--> prim @main --differentiate, simplify--> @joint --partition-->
@forward, @backward, each lowered when it is first called.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp

from isthmus import ir
from isthmus.diagnostics import CompileError, RefusedError, UnsupportedError
from isthmus.dialects import new_context
from isthmus.dialects.signature import Result, Signature
from isthmus.driver.artifacts import Record, log
from isthmus.driver.compilers import Compiler, compiled_by
from isthmus.driver.conventions import convention_of, require_known_sizes, returned
from isthmus.driver.derivatives import LibraryCalls
from isthmus.driver.draws import Draw, draws_of, require_same_draws
from isthmus.driver.metadata import Metadata, metadata_of
from isthmus.driver.native import for_host, make_native
from isthmus.driver.options import Options
from isthmus.driver.progress import PROGRESS
from isthmus.driver.reproduce import Trail
from isthmus.driver.rules import Applied, apply_rules, registered
from isthmus.driver.verify import Verifier
from isthmus.passes.autodiff.differentiate import ZERO, following_tangents
from isthmus.passes.partition.explain import Explanation, explain_partition
from isthmus.passes.partition.partition import cut
from isthmus.passes.pipelines import cpu_kernels, gpu_kernels, parse_pass, pass_text, run_passes
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.convention import Executable, Value
from isthmus.runtime.interpret import interpreted
from isthmus.runtime.interpret_on import OnDevice


@dataclass
class Lowering:
    """One program on its way down; keeps what later stages and `explain` ask for."""

    options: Options
    record: Record
    library: LibraryCalls | None = None
    stages: dict[str, ModuleOp] = field(default_factory=dict[str, ModuleOp])
    """The program after each stage, by artifact name (only the first order)."""
    verifier: Verifier | None = None
    kernels: dict[str, ModuleOp] = field(default_factory=dict[str, ModuleOp])
    """Function name -> its kernels, once it was lowered."""
    hints: Mapping[str, int] = field(default_factory=dict[str, int])
    """Example values of the size symbols."""
    applied: Applied = field(default_factory=Applied)
    """How often each of the user's rules was used."""
    metadata: Metadata | None = None
    """The boundary of the program, once it is known."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the program runs."""
    fallbacks: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict[str, tuple[tuple[str, str], ...]])
    """Function name -> what of it is no machine code of ours: name and reason (programs of a GPU)."""

    _trail: Trail = field(default_factory=lambda: Trail(ModuleOp([])))

    def start(self, source: ModuleOp) -> ModuleOp:
        """Give the copy to work on; the source stays, so that the IR before a failing pass can be made again."""
        self._trail = Trail(source)
        return source.clone()

    def to_prim(self, source: ModuleOp) -> ModuleOp:
        """Lower a captured aten module to primitives."""
        module = self.start(source)
        self.record.restart()
        self.run(module, "functionalize", "functional")
        require_known_sizes(ir.function(module, "main"))
        if registered():
            self.applied = apply_rules(module, self.hints)
            self._trail = Trail(module.clone())
            self.record.stage("user rules", "functional", module)
        log("rewrites", self.applied.table, self.record.graph)
        random = "library" if self.options.fallback_random else "philox"
        self.run(module, f"decompose{{to=prim table={self.options.decompositions} random={random}}}", None)
        on_cpu = self.device.type == "cpu"  # elsewhere float32 has no kernel for attention as a whole
        self.run(module, "vectorize", None if on_cpu else "prim")
        if on_cpu:
            self.run(module, "form-attention", "prim")
        self.stages["prim"] = module
        return module

    def node(self, prim: ModuleOp, level: int = 0, draws: tuple[Draw, ...] | None = None) -> TapeNode:
        """Make the tape node of a prim module's @main; its derivative's node is made when it is asked for.

        `draws`: what the program that it is a derivative of draws from torch's generators.
        """
        signature = Signature.of(ir.function(prim, "main"))
        wanted = any(a.wants_gradient for a in signature.arguments)
        forward_name = "forward" if level == 0 else f"forward of order {level + 1}"
        if not wanted:
            return self._inference_node(prim)
        joint = self.start(prim)
        self.run(joint, "differentiate", None)
        self.run(joint, "simplify", "joint")
        if not Signature.of(ir.function(joint, "joint")).tangents:
            return self._inference_node(prim)
        self._note_boundary(prim, joint)
        halves = self.start(joint)
        self.run(halves, "end-differentiation", None)
        strategy, budget = self.options.cut
        if self.options.partition is None:
            self.run(halves, f"partition{{strategy={strategy} budget={budget}}}", None)
        else:
            cut(halves, choose=self.options.partition)
        forward, backward = only(halves, "forward"), only(halves, "backward")
        if draws is not None:
            require_same_draws(draws, forward, backward)
        drawn = draws_of(forward)
        self.record.stage(forward_name, "forward", forward)
        self.record.stage(forward_name.replace("forward", "backward"), "backward", backward)
        for name, stage in (("joint", joint), ("forward", forward), ("backward", backward)):
            self.stages.setdefault(name, stage)
        log("saved", lambda: explain_cut(joint, self.options).table(), self.record.graph)
        convention = convention_of(ir.function(forward, "forward"), ir.function(backward, "backward"))
        directions = ("forward", "backward") if level == 0 else ("backward", "backward")
        run_forward, make_backward = self._pair(forward, backward, directions)
        return TapeNode(
            convention,
            run_forward,
            make_backward,
            make_derivative=lambda: self.node(gradient_function(joint), level + 1, drawn),
            inference=Lazily(lambda: self._inference(prim)),
            higher_order=self.options.higher_order,
            draws=bool(drawn),
            name=f"Compiled{self.record.name.title().replace('_', '')}",
        )

    def _note_boundary(self, prim: ModuleOp, joint: ModuleOp | None = None) -> None:
        """Keep and show the record of the program itself (not of its derivatives)."""
        if self.metadata is None:
            pair = None if joint is None else ir.function(joint, "joint")
            self.metadata = metadata_of(ir.function(prim, "main"), pair)
            log("metadata", self.metadata.table, self.record.graph)

    def _pair(
        self, forward: ModuleOp, backward: ModuleOp, directions: tuple[str, str]
    ) -> tuple[Executable, Callable[[], Executable]]:
        """Make a forward callable, and what makes its backward callable; made by one built-in they share memory."""
        first, second = (self.options.compiler(d) for d in directions)
        run_forward = self.executable(forward, "forward", first)
        if first == second and isinstance(first, str):
            return run_forward, lambda: self.built_in(backward, "backward", run_forward, backend=first)
        return Plain(run_forward), lambda: Plain(self.executable(backward, "backward", second))

    def executable(self, module: ModuleOp, name: str, compiler: Compiler | str) -> Executable:
        """Make a function at prim level callable by a built-in compiler or by the user's."""
        if isinstance(compiler, str):
            return self.built_in(module, name, backend=compiler)
        with compiling():
            return compiled_by(compiler, module, self.hints)

    def built_in(
        self, module: ModuleOp, name: str, forward: Executable | None = None, backend: str | None = None
    ) -> Executable:
        """Make a function at prim level callable: interpreted, or as machine code; a backward names its forward."""
        with compiling():
            if (backend or self.options.backend) == "interpret":
                run = cast(Executable, interpreted(ir.function(module, name), module=module))
                return run if self.device.type == "cpu" else OnDevice(run, self.device)
            module = self.start(module)
            self.record.restart()
            on_cpu = self.device.type == "cpu"
            pipeline = cpu_kernels(self.options.contractions) if on_cpu else gpu_kernels()
            for text in map(for_host, pipeline):
                self.run(module, text, "kernels" if text == pipeline[-1] else None)
            self.kernels[name] = module
            return self._code(ir.function(module, name), forward)

    def _code(self, func: FuncOp, forward: Executable | None) -> Executable:
        """Make machine code of a planned function for the program's device."""
        if self.device.type == "cpu":
            known = forward if isinstance(forward, NativeProgram) else None
            return make_native(func, self.record, forward=known, use_cache=self.options.cache)
        from isthmus.driver.on_device import make_on_device
        from isthmus.runtime.cuda_graph import GraphedProgram
        from isthmus.runtime.device_program import DeviceProgram

        there = forward if isinstance(forward, DeviceProgram | GraphedProgram) else None
        known = there.program if there is not None else None
        made = make_on_device(func, self.device, self.record, forward=known, use_cache=self.options.cache)
        self.fallbacks[func.sym_name.data] = made.fallbacks
        if not self.options.cuda_graphs:
            return made
        return GraphedProgram(made, lambda text: log("cuda_graphs", text, self.record.graph))

    def _inference_node(self, prim: ModuleOp) -> TapeNode:
        function = ir.function(prim, "main")
        self._note_boundary(prim)
        return TapeNode(convention_of(function), self._inference(prim))

    def _inference(self, prim: ModuleOp) -> Executable:
        alone = self.start(prim)
        self.record.restart()
        self.run(alone, "end-differentiation", None)
        self.run(alone, "simplify", None)
        self.record.stage("forward without gradients", "forward", alone)
        return self.executable(alone, "main", self.options.compiler("forward"))

    def run(self, module: ModuleOp, text: str, artifact: str | None) -> None:
        """Run one pass, show the result to whoever asked. PassFailure names the pass that fails and keeps the IR."""
        current = parse_pass(text)
        prepare = getattr(current, "with_derivatives", None)
        if prepare is not None and self.library is not None:
            current = prepare(self.library.derivative_of, self.library.batched_of, self.library.draws)
        failing = f"{self.record.graph}-{current.name}"
        try:
            current.apply(new_context(), module)
        except CompileError as error:
            if error.location is not None or isinstance(error, UnsupportedError | RefusedError):
                raise  # the user's program is at fault, not the pass
            raise self._trail.failure(current, error, failing) from error
        except Exception as error:
            failure = self._trail.failure(current, error, failing)
            if prepare is None:
                raise failure from error
            error.add_note(str(failure))  # it traces derivatives that the user wrote: their errors keep their type
            raise
        self._trail.passes.append(current)
        if self.options.verify != "none":
            ir.verify(module)
        if self.verifier is not None:
            self.verifier.note(pass_text(current), module)
        self.record.stage(current.name, artifact, module)


_COMPILING = threading.RLock()


@contextmanager
def compiling() -> Generator[None]:
    """Hold the compiler's lock, show progress, pause the cyclic garbage collector: IR is cyclic and young meanwhile."""
    with _COMPILING, PROGRESS.showing():
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


class Plain:
    """An executable whose saved values are tensors of their own, whatever it could do besides."""

    def __init__(self, run: Executable) -> None:
        self._run = run
        self.fresh = bool(getattr(run, "fresh", False))
        self.native = bool(getattr(run, "native", False))

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Run."""
        return self._run(arguments)


class Lazily:
    """An executable that is compiled when it is first called."""

    def __init__(self, make: Callable[[], Executable]) -> None:
        self._make = make
        self._made: Executable | None = None
        self._lock = threading.RLock()

    def _now(self) -> Executable:
        if self._made is None:
            with self._lock:
                self._made = self._made or self._make()
        return self._made

    @property
    def native(self) -> bool:
        """Whether the call is one native call."""
        return bool(getattr(self._now(), "native", False))

    @property
    def fresh(self) -> bool:
        """Whether results share no storage."""
        return bool(getattr(self._now(), "fresh", False))

    def __call__(self, arguments: list[Value], /) -> list[Tensor]:
        """Compile at the first call, then run."""
        return self._now()(arguments)


def only(module: ModuleOp, name: str) -> ModuleOp:
    """Give a new module with a copy of one function and the module's attributes."""
    return ModuleOp([ir.function(module, name).clone()], dict(module.attributes))


def explain_cut(joint: ModuleOp, options: Options) -> Explanation:
    """Say what the partition of a joint program keeps, and why."""
    ended = joint.clone()
    run_passes(new_context(), ended, ["end-differentiation"])
    return explain_partition(ir.function(ended, "joint"), *options.cut, options.partition)


def gradient_function(joint: ModuleOp) -> ModuleOp:
    """Give @main whose results are the gradients of @joint and whose primals are its primals and tangents.

    What order n computes as gradients, order n + 1 differentiates.
    """
    module = only(joint, "joint")
    func = ir.function(module, "joint")
    signature = Signature.of(func)
    wanted = signature.gradients
    order = sorted(wanted)
    arguments = tuple(
        replace(a, primal=True, tangent=None, wants_gradient=a.tangent is not None or i in wanted)
        if a.primal or a.tangent is not None
        else a
        for i, a in enumerate(signature.arguments)
    )
    values = returned(func)
    terminator = func.body.block.last_op
    assert terminator is not None
    terminator.detach()
    terminator.erase()
    zero = [ZERO in signature.results[wanted[i]].extra for i in order]
    tangents = [func.body.block.args[k] for k in signature.tangents.values()]
    kept = following_tangents(func.body.block, [values[wanted[i]] for i in order], zero, tangents)
    func.body.block.add_op(ReturnOp(*kept))
    types = [v.type for v in kept]
    func.function_type = FunctionType.from_lists([a.type for a in func.body.block.args], types)
    func.properties["sym_name"] = StringAttr("main")
    outputs = tuple(("value", k, ()) for k in range(len(kept)))
    Signature(arguments, tuple(Result(output=True) for _ in kept), outputs).attach(func)
    ir.erase_unused(func.body.block, lambda op: isinstance(op, ReturnOp))
    return module
