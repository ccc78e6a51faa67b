"""From a captured program to machine code: the passes of each stage.

captured aten --functionalize, decompose--> prim @main --differentiate, simplify--> @joint --partition-->
@forward, @backward, each lowered when it is first called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from isthmus import ir
from isthmus.diagnostics import CompileError, RefusedError, UnsupportedError
from isthmus.dialects import new_context, prim
from isthmus.dialects.signature import Signature
from isthmus.driver.after_gradients import STAGE as AFTER_GRADIENTS
from isthmus.driver.after_gradients import rewrite_after_gradients
from isthmus.driver.artifacts import Record, log
from isthmus.driver.compilers import Compiler, compiled_by
from isthmus.driver.conventions import convention_of, require_known_sizes
from isthmus.driver.derivatives import LibraryCalls
from isthmus.driver.draws import Draw, draws_of, require_same_draws
from isthmus.driver.executables import compiling
from isthmus.driver.halves import Halves, apart, explain_cut
from isthmus.driver.metadata import Metadata, metadata_of
from isthmus.driver.native import Keep, for_host, make_native
from isthmus.driver.options import Options
from isthmus.driver.reproduce import Trail
from isthmus.driver.rules import Applied, apply_rules, registered
from isthmus.driver.verify import Verifier
from isthmus.passes.autodiff.differentiate import may_have_tangents
from isthmus.passes.partition.partition import cut
from isthmus.passes.pipelines import CHUNK_ROWS, cpu_kernels, gpu_kernels, parse_pass, pass_text
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.convention import Convention, Executable
from isthmus.runtime.device_libraries import ATTENTION, PRODUCTS, load_behind
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
    tf32: bool = False
    """Whether products of f32 may be made in TF32 there, when the program was captured (whose guards watch it)."""
    fallbacks: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict[str, tuple[tuple[str, str], ...]])
    """Function name -> what of it is no machine code of ours: name and reason (programs of a GPU)."""

    _trail: Trail = field(default_factory=lambda: Trail(ModuleOp([])))

    def start(self, source: ModuleOp) -> ModuleOp:
        """Give the copy to work on; the source stays, so that the IR before a failing pass can be made again."""
        self._trail = Trail(source)
        return ir.copied(source)

    def to_prim(self, source: ModuleOp) -> ModuleOp:
        """Lower a captured aten module to primitives."""
        module = self.start(source)
        self.record.restart()
        self.run(module, "functionalize", "functional")
        require_known_sizes(ir.function(module, "main"))
        if registered("pre-grad"):
            self.applied = apply_rules(module, self.hints)
            self._trail = Trail(module.clone())
            self.record.stage("user rules", "functional", module)
        log("rewrites", self.applied.table, self.record.graph)
        self.run(module, f"decompose{{to=prim table={self.options.decompositions} random={self._draws}}}", None)
        on_cpu = self.device.type == "cpu"  # elsewhere float32 has no kernel for attention as a whole
        self.run(module, "vectorize", None if on_cpu else "prim")
        if on_cpu:
            self.run(module, "form-attention", "prim")
        else:
            load_behind(self.device, *_libraries_of(ir.function(module, "main")))
        self.stages["prim"] = module
        return module

    def halves(self, prim: ModuleOp, level: int = 0, draws: tuple[Draw, ...] | None = None) -> Halves | None:
        """Differentiate a prim module's @main and cut it in two; None where no gradient is asked for.

        `draws`: what the program that it is a derivative of (at a level above 0) draws from torch's generators.
        """
        if not may_have_tangents(ir.function(prim, "main")):
            return None
        joint = self.start(prim)
        self.run(joint, "differentiate", None)
        self.run(joint, "simplify", "joint")
        if not Signature.of(ir.function(joint, "joint")).tangents:
            return None
        self.boundary(prim, joint)
        whole = self.start(joint)
        for text in self.before_cut:
            self.run(whole, text, None)
        strategy, budget = self.options.cut
        if self.options.partition is None:
            self.run(whole, f"partition{{strategy={strategy} budget={budget}}}", None)
        else:
            cut(whole, choose=self.options.partition)
        self._rewrite_after_gradients(whole)
        forward, backward = apart(whole, "forward"), apart(whole, "backward")
        if draws is not None:
            require_same_draws(draws, forward, backward)
        name = "forward" if level == 0 else f"forward of order {level + 1}"
        self.record.stage(name, "forward", forward)
        self.record.stage(name.replace("forward", "backward"), "backward", backward)
        for stage, module in (("joint", joint), ("forward", forward), ("backward", backward)):
            self.stages.setdefault(stage, module)
        log("saved", lambda: explain_cut(joint, self.options, self.before_cut).table(), self.record.graph)
        convention = convention_of(ir.function(forward, "forward"), ir.function(backward, "backward"))
        return Halves(prim, joint, forward, backward, convention, draws_of(forward))

    def _rewrite_after_gradients(self, module: ModuleOp) -> None:
        """Apply the user's rules that act on what gradients have left."""
        if not registered(AFTER_GRADIENTS):
            return
        used = rewrite_after_gradients(module, self.hints, self._draws)
        for rule, count in used.items():
            self.applied.counts[rule] = self.applied.counts.get(rule, 0) + count
        self._trail = Trail(module.clone())
        self.record.stage("user rules after gradients", None, module)
        log("rewrites", self.applied.table, self.record.graph)

    @property
    def writes_over_saved(self) -> bool:
        """Whether a backward may write over what forward has saved for it; replayed graphs keep that memory."""
        return self.device.type == "cuda" and not self.options.cuda_graphs

    @property
    def before_cut(self) -> tuple[str, ...]:
        """What is done to a joint program before it is cut: a GPU waits for memory, so a loss is read once."""
        plain = self.options.partition is None and self.options.cut == ("min-cut", 1.0)
        early = plain and self.writes_over_saved
        return ("end-differentiation", *(("prepay-gradients",) if early else ()))

    @property
    def _draws(self) -> str:
        """Where random numbers come from, as `decompose` takes it."""
        return "library" if self.options.fallback_random else "philox"

    def boundary(self, prim: ModuleOp, joint: ModuleOp | None = None) -> Convention:
        """Keep and show the record of the program itself (not of its derivatives); give its calling convention."""
        main = ir.function(prim, "main")
        if self.metadata is None:
            self.metadata = metadata_of(main, None if joint is None else ir.function(joint, "joint"))
            log("metadata", self.metadata.table, self.record.graph)
        return convention_of(main)

    def executable(self, module: ModuleOp, name: str, compiler: Compiler | str, keep: Keep | None = None) -> Executable:
        """Make a function at prim level callable by a built-in compiler or by the user's."""
        if isinstance(compiler, str):
            return self.built_in(module, name, backend=compiler, keep=keep)
        with compiling():
            return compiled_by(compiler, module, self.hints)

    def built_in(
        self,
        module: ModuleOp,
        name: str,
        forward: Executable | None = None,
        backend: str | None = None,
        keep: Keep | None = None,
    ) -> Executable:
        """Make a function at prim level callable: interpreted, or as machine code; a backward names its forward."""
        with compiling():
            if (backend or self.options.backend) == "interpret":
                run = cast(Executable, interpreted(ir.function(module, name), module=module))
                return run if self.device.type == "cpu" else OnDevice(run, self.device)
            module = self.start(module)
            self.record.restart()
            on_cpu = self.device.type == "cpu"
            contractions, past_caches = self.options.contractions, self.options.past_caches
            pipeline = (
                cpu_kernels(contractions, past_caches=past_caches)
                if on_cpu
                else gpu_kernels(contractions, tf32=self.tf32)
            )
            pipeline = tuple(found for text in pipeline for found in self._in_pieces(text))
            for text in map(for_host, pipeline):
                self.run(module, text, "kernels" if text == pipeline[-1] else None)
            self.kernels[name] = module
            return self._code(ir.function(module, name), forward, keep)

    def _in_pieces(self, text: str) -> tuple[str, ...]:
        """What a pass becomes by the option `chunk_rows`."""
        chosen = self.options.chunk_rows
        if text != CHUNK_ROWS or chosen is True:
            return (text,)
        return (f"{CHUNK_ROWS}{{least={chosen << 21} most={chosen << 20} deep=1}}",) if chosen else ()

    def _code(self, func: FuncOp, forward: Executable | None, keep: Keep | None) -> Executable:
        """Make machine code of a planned function for the program's device."""
        if self.device.type == "cpu":
            known = forward if isinstance(forward, NativeProgram) else None
            use_cache, reuse = self.options.cache, self.options.reuse_results
            return make_native(func, self.record, forward=known, use_cache=use_cache, reuse_results=reuse, keep=keep)
        from isthmus.driver.on_device import make_on_device
        from isthmus.runtime.cuda_graph import GraphedProgram
        from isthmus.runtime.device_program import DeviceProgram

        there = forward if isinstance(forward, DeviceProgram | GraphedProgram) else None
        known = there.program if there is not None else None
        made = make_on_device(func, self.device, self.record, forward=known, use_cache=self.options.cache, keep=keep)
        self.fallbacks[func.sym_name.data] = made.fallbacks
        if not self.options.cuda_graphs:
            return made
        return GraphedProgram(made, lambda text: log("cuda_graphs", text, self.record.graph))

    def inference(self, prim: ModuleOp, keep: Keep | None = None) -> Executable:
        """Make a prim module's @main callable, without a derivative."""
        alone = self.start(prim)
        self.record.restart()
        self.run(alone, "end-differentiation", None)
        self.run(alone, "simplify", None)
        if self.options.fold_into_conv:
            self.run(alone, "fold-into-conv", None)
        self._rewrite_after_gradients(alone)
        self.record.stage("forward without gradients", "forward", alone)
        return self.executable(alone, "main", self.options.compiler("forward"), keep)

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


def _libraries_of(func: FuncOp) -> set[str]:
    """Give what a program in primitives will call on a GPU."""
    found: set[str] = set()
    for op in func.body.block.ops:
        if isinstance(op, prim.DotOp):
            found.add(PRODUCTS)
        elif isinstance(op, prim.AttentionOp) and ir.itemsize(ir.dtype_of(op.q)) == 2:  # of float32 it is written out
            found.add(ATTENTION)
    return found
