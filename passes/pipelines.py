"""Pipelines as data, and what runs them: the only place where passes meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer
from xdsl.utils.arg_spec import ArgSpec, parse_spec

from isthmus.diagnostics import CompileError, IRError, nearest
from isthmus.passes import PASSES, load_pass

CAPTURED_TO_PRIM = ("functionalize", "decompose", "vectorize", "form-attention")
"""From the captured program to primitives."""

JOINT = ("differentiate", "end-differentiation", "simplify", "partition")
"""A training program: one joint function, then forward and backward."""

INFERENCE = ("end-differentiation", "simplify", "partition")
"""A program without gradients: one forward function."""

FUSE = "fuse{contractions=auto}"

CHUNK_ROWS = "chunk-rows"

GROUP_DOTS = "group-dots"

PLAN = "plan-memory"

PAST_CACHES = "store-past-caches"

KERNELS = (
    "select-library",
    "decompose{to=elementary}",
    "simplify",
    "join-dots",
    GROUP_DOTS,
    CHUNK_ROWS,
    FUSE,
    "join-in-place",
    "schedule",
    PLAN,
    PAST_CACHES,
)
"""From primitives to planned kernels, for one direction."""


def cpu_kernels(contractions: str = "auto", *, past_caches: bool = True) -> tuple[str, ...]:
    """Give the passes from primitives to planned kernels for a CPU; `contractions` as `fuse` takes it.

    `past_caches`: large results may be stored past the caches.
    """
    own = {FUSE: f"fuse{{contractions={contractions}}}", PLAN: "plan-memory{write-back=65536}"}
    return tuple(own.get(text, text) for text in KERNELS if past_caches or text != PAST_CACHES)


def gpu_kernels(contractions: str = "auto", *, tf32: bool = False) -> tuple[str, ...]:
    """Give the passes from primitives to planned kernels for a GPU: its own schedule and libraries.

    `tf32`: products of f32 may be made in TF32.
    """
    fuse = f"fuse{{target=gpu contractions={contractions}{' tf32=true' if tf32 else ''}}}"
    own = {
        "select-library": ("select-library{device=cuda}",),
        GROUP_DOTS: ("turn-dots",),
        FUSE: (fuse,),
        PAST_CACHES: (),
        "schedule": ("scale-saved", "early-checks", "pick-first", "schedule-gpu"),
    }
    return tuple(found for text in KERNELS for found in own.get(text, (text,)))


CPU = CAPTURED_TO_PRIM + JOINT + KERNELS
"""A training step for the CPU, all at once (the driver lowers each direction when it is first called)."""


class PassFailure(CompileError):
    """A pass that failed; `before` is the IR that `isthmus-opt -p '<pass_text>'` runs on to show it again."""

    def __init__(self, pass_text: str, error: Exception, before: str) -> None:
        self.pass_text, self.error, self.before = pass_text, error, before
        super().__init__(f"pass '{pass_text}' failed: {error}")  # whose text has the cure

    def keep(self, path: str) -> str:
        """Write the IR to a file that `isthmus-opt` runs; gives the sentence that says so, or why it is not there."""
        command = f"isthmus-opt -p '{self.pass_text}' {path}"
        try:
            with open(path, "w") as file:
                file.write(f"// {command}\n{self.before}")
        except OSError as error:
            return f"the IR before it could not be kept in {path}: {error}"
        return f"the IR before it is kept: {command}"


Between = Callable[[ModulePass | None, ModuleOp, ModulePass | None], None]
"""Called between passes with the pass that just ran, the module and the next pass."""


class Pipeline(PassPipeline):
    """Passes in order; a failing one is named and the IR before it is kept."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run the passes on the module in place. PassFailure when one fails, and what its verifier raises."""
        between: Between = self.callback or (lambda before, module, after: None)
        previous: ModulePass | None = None
        for current in self.passes:
            between(previous, op, current)
            before = op.clone()
            try:
                current.apply(ctx, op)
            except Exception as error:
                raise PassFailure(pass_text(current), error, module_text(before)) from error
            previous = current
        between(previous, op, None)


@cache
def parse_pass(text: str) -> ModulePass:
    """Give the pass that a text like `partition{strategy=default}` describes; IRError on an unknown one.

    Passes are immutable: one object serves all who name it (reading the types of its fields takes half a millisecond).
    """
    spec = parse_spec(text)
    check_pass(spec)
    return load_pass(spec.name).from_spec(spec)


def check_pass(spec: ArgSpec) -> None:
    """Raise IRError where there is no such pass, or it has no such option; it tells which was meant."""
    name = spec.name
    if name not in PASSES:
        raise IRError(f"there is no pass '{name}'{nearest(name, PASSES)}", cure=f"the passes are {', '.join(PASSES)}")
    options = {f.name.replace("_", "-"): f for f in fields(load_pass(name)) if f.init and f.name != "name"}
    listed = ", ".join(f"{option} ({f.type})" for option, f in options.items())
    cure = f"its options are {listed}" if options else "it has no options"
    for option in spec.parameters:
        if option.replace("_", "-") not in options:
            raise IRError(f"{name} has no option '{option}'{nearest(option, options)}", cure=cure)
    try:
        load_pass(name).from_spec(spec)
    except ValueError as error:
        raise IRError(f"{spec} has no meaning: {error}", cure=cure) from None


def pass_text(p: ModulePass) -> str:
    """Give the text that `parse_pass` reads."""
    return str(p.spec())


def module_text(module: ModuleOp) -> str:
    """Give the module as text with locations left out."""
    stream = StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue() + "\n"


def run_passes(context: Context, module: ModuleOp, pipeline: Sequence[str]) -> None:
    """Apply passes, given by their text, to a module in place; no clone, no verification in between."""
    for text in pipeline:
        parse_pass(text).apply(context, module)
