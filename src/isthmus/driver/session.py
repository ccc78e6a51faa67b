"""One `isthmus.compile`: its options, and every program compiled under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from xdsl.dialects.builtin import ModuleOp

from isthmus import ir
from isthmus.dialects import aten, prim
from isthmus.dialects.signature import Signature
from isthmus.driver import price_list
from isthmus.driver.artifacts import Record, log
from isthmus.driver.conventions import convention_of
from isthmus.driver.derivatives import LibraryCalls
from isthmus.driver.executables import compiling
from isthmus.driver.kept import kept_of
from isthmus.driver.lowering import Lowering
from isthmus.driver.nodes import Nodes
from isthmus.driver.options import Options
from isthmus.driver.verify import Verifier
from isthmus.frontend.captured import Captured, Compiled
from isthmus.frontend.captured import Value as CapturedValue
from isthmus.passes.decompose.table import REASON
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.boundary import CompiledFunction
from isthmus.runtime.convention import Executable
from isthmus.runtime.interpret import interpreted
from isthmus.runtime.torch_private import multiplies_in_tf32
from isthmus.sizes import Size

_COMPILED: list[int] = [0]


def compilations() -> int:
    """Give how many captured programs this process has compiled."""
    return _COMPILED[0]


@dataclass
class Program:
    """A compiled program, as `explain` looks at it."""

    captured: Captured
    lowering: Lowering
    node: TapeNode | None = None

    @property
    def stages(self) -> Mapping[str, ModuleOp]:
        """The program at each stage that was reached."""
        return {"graph": self.captured.module, **self.lowering.stages}


@dataclass
class Session:
    """Compiles what the frontend captures. `programs` lists the results in order.

    With `warm` programs that an earlier process left on disk run without any pass; else their passes can be looked at.
    """

    options: Options = field(default_factory=Options)
    warm: bool = False
    programs: list[Program] = field(default_factory=list[Program])

    def __reduce__(self) -> tuple[object, ...]:
        """A copy has the options and compiles for itself."""
        return Session, (self.options, self.warm)

    def compile_captured(self, captured: Captured) -> Compiled:
        """Lower a captured program down to the first call; the backward waits for its first use."""
        record = Record(captured.name)
        if captured.device.type == "cpu":
            price_list.chosen(self.options.prices).attach(ir.function(captured.module, "main"))
        hints = aten.hints_of(captured.module)
        library = LibraryCalls(self.options, hints, str(captured.device))
        device = captured.device
        tf32 = multiplies_in_tf32(device)
        lowering = Lowering(self.options, record, library, hints=hints, device=device, tf32=tf32)
        program = Program(captured, lowering)
        self.programs.append(program)
        _COMPILED[0] += 1
        with compiling():
            record.stage("capture", "graph", captured.module)
            if self.options.backend == "eager":
                return _captured_only(captured)
            if self.options.verify == "each-pass":
                lowering.verifier = Verifier()
            kept = kept_of(captured, self.options) if self.warm else None
            nodes = Nodes(lowering, captured.module, with_gradients=torch.is_grad_enabled(), kept=kept)
            program.node = nodes.program()
        log("fallbacks", lambda: fallbacks_table(lowering.stages["prim"]), record.graph)
        log("times", lambda: times_table(record), record.graph)
        return _call(program.node, captured, lowering.verifier)


def _call(node: TapeNode, captured: Captured, verifier: Verifier | None) -> Compiled:
    constants = captured.constants
    function = CompiledFunction(node.convention, node, captured.device)
    if not constants and verifier is None:
        return cast(Compiled, function)

    def call(arguments: list[CapturedValue]) -> Sequence[CapturedValue]:
        if verifier is not None:
            verifier.begin([*arguments, *constants])
        return cast(Sequence[CapturedValue], function([*arguments, *constants]))

    return call


def _captured_only(captured: Captured) -> Compiled:
    """Run the captured program itself, on torch's tape."""
    func = ir.function(captured.module, "main")
    run = cast(Executable, interpreted(func, module=captured.module))
    outputs = Signature.of(func).user_outputs or ()
    sized = any(isinstance(entry[1], Size) for entry in outputs)
    convention = convention_of(func)

    def call(arguments: list[CapturedValue]) -> Sequence[CapturedValue]:
        given = [*arguments, *captured.constants]
        results = run(given)
        sizes = convention.sizes(given) if sized else {}
        return [cast(CapturedValue, _user_output(entry, given, results, sizes)) for entry in outputs]

    return call


def _user_output(
    entry: tuple[ir.LiteralValue, ...],
    arguments: Sequence[object],
    results: list[torch.Tensor],
    sizes: Mapping[str, int],
) -> object:
    kind, what, *_ = entry
    if kind == "constant":
        return what.evaluate(sizes) if isinstance(what, Size) else what
    assert isinstance(what, int)
    return arguments[what] if kind == "argument" else results[what]


def fallbacks_table(prim_module: ModuleOp) -> str:
    """Give the operators that stay library calls, where they are and why."""
    rows = [
        f"{op.callee.data} at {ir.source_location(op) or 'unknown place'}: {ir.literal(op, REASON) or 'no rule'}"
        for op in prim_module.walk()
        if isinstance(op, prim.OpaqueOp)
    ]
    return "\n".join(rows) or "none"


def times_table(record: Record) -> str:
    """Give the milliseconds per stage."""
    rows = [f"{name:32} {ms:10.2f}" for name, ms in record.milliseconds.items()]
    return "\n".join([f"{'stage':32} {'ms':>10}", *rows, f"{'sum':32} {sum(record.milliseconds.values()):10.2f}"])
