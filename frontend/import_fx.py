"""From Dynamo's torch-level graph to an aten module: the graph is interpreted on fake tensors under the recorder."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, fx
from torch._dynamo.source import RandomValueSource
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend import noise, structured
from isthmus.frontend.captured import Captured, Input
from isthmus.frontend.finish import finish
from isthmus.frontend.known_nodes import HistoryIsRead, KnownNodes, Target, seems_to_write
from isthmus.frontend.locations import from_stack_trace
from isthmus.frontend.memo import Memo
from isthmus.frontend.modes import restored_modes
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import Call
from isthmus.frontend.symbolic import SizeReader
from isthmus.frontend.torch_private import dynamo_source, python_dispatcher


def import_graph(graph: fx.GraphModule, example_inputs: Sequence[object], *, name: str = "main") -> Captured:
    """Import Dynamo's graph; to be called inside of a Dynamo backend, with the inputs that Dynamo passes.

    Raises UnsupportedError (with the user's line) for what has no compiled form.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    example_inputs = [_as_called(p, x) for p, x in zip(placeholders, example_inputs, strict=True)]
    shape_env = _shape_env(placeholders)
    inputs = [_input(p, x) for p, x in zip(placeholders, example_inputs, strict=True)]
    trains = any(isinstance(x, Tensor) and x.requires_grad for x in example_inputs)
    remember = not any(_is_structured(n) or (trains and seems_to_write(n)) for n in graph.graph.nodes)
    for _ in range(4):
        fake_mode = FakeTensorMode(shape_env=shape_env)
        with _tracing_with(fake_mode):
            fakes = [_fakify(fake_mode, p, x) for p, x in zip(placeholders, example_inputs, strict=True)]
            recorder = Recorder(fake_mode, SizeReader(shape_env))
            known = KnownNodes(recorder) if remember else None
            try:
                captured = _run(GraphImporter(graph, recorder, known), fakes, inputs, example_inputs, name)
            except (Exception, HistoryIsRead):
                if known is None or not known.used:
                    raise
                remember = False
                continue
        if known is not None and known.used and recorder.reads_history:
            remember = False
        elif recorder.sizes.is_current():
            return captured
        # else the run itself taught torch that more sizes are equal: write them one way, from the start.
    raise UnsupportedError("the sizes of the program do not settle")


class GraphImporter(fx.Interpreter):
    """Interprets a torch-level graph under a recorder; structured calls keep their bodies as regions."""

    def __init__(self, graph: fx.GraphModule, recorder: Recorder, known: KnownNodes | None = None) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self.recorder = recorder
        self.known = known
        self.node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> object:
        self.node = n
        self.recorder.location = from_stack_trace(n.meta.get("stack_trace")) or self.recorder.location
        if n.op == "call_method" and n.target == "item" and not n.users:
            return None  # a float attribute that nothing uses
        return super().run_node(n)

    def call_function(self, target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        handler = structured.handler_of(target)
        if handler is None:
            if target in noise.FUNCTIONS:
                with noise.torchs_own(self.recorder):
                    return super().call_function(target, args, kwargs)  # pyright: ignore[reportArgumentType]
            return self._called(cast(Target, target), args, kwargs, super().call_function)
        assert self.node is not None
        self.recorder.reads_history = True
        with self.recorder.errors_at(structured.name_of(target)):
            return handler(Call(self.recorder, _run_body, args, kwargs, self.node.meta.get("example_value")))

    def call_method(self, target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return self._called(cast(str, target), args, kwargs, super().call_method)

    def _called(
        self, target: Target, args: tuple[object, ...], kwargs: dict[str, object], call: Callable[..., object]
    ) -> object:
        if self.known is None:
            return call(target, args, kwargs)
        return self.known.run(target, args, kwargs, lambda: call(target, args, kwargs))


def _is_structured(node: fx.Node) -> bool:
    return node.op == "call_function" and structured.handler_of(node.target) is not None


def _run_body(graph: fx.GraphModule, recorder: Recorder, args: Sequence[object]) -> object:
    return GraphImporter(graph, recorder).run(*args)


def _run(
    importer: GraphImporter,
    fakes: Sequence[object],
    inputs: Sequence[Input],
    example_inputs: Sequence[object],
    name: str,
) -> Captured:
    recorder = importer.recorder
    for fake in fakes:
        if isinstance(fake, Tensor):
            recorder.add_input(fake)
        else:
            recorder.add_size()
    with restored_modes():
        with recorder.fake_mode, Memo(recorder.fake_mode), python_dispatcher(), recorder:
            result = importer.run(*fakes)
            outputs = [v for v in pytree.tree_leaves(result)] if result is not None else []
        return finish(recorder, inputs, fakes, example_inputs, outputs, name)


# ---- Inputs


def _shape_env(placeholders: Sequence[fx.Node]) -> ShapeEnv | None:
    context = TracingContext.try_get()
    if context is not None and context.fake_mode is not None:
        return context.fake_mode.shape_env
    values = (p.meta.get("example_value") for p in placeholders)
    return next((v.fake_mode.shape_env for v in values if isinstance(v, FakeTensor)), None)


@contextmanager
def _tracing_with(fake_mode: FakeTensorMode) -> Generator[None]:
    """Make this the fake mode that torch expects while it traces."""
    context = TracingContext.try_get()
    if context is None:
        yield
        return
    before, context.fake_mode = context.fake_mode, fake_mode
    try:
        yield
    finally:
        context.fake_mode = before


def _as_called(placeholder: fx.Node, example: object) -> object:
    """Give an example of the dtype that calls have: Dynamo draws Python's numbers in double, its example is single."""
    drawn = isinstance(getattr(placeholder.meta.get("grapharg"), "source", None), RandomValueSource)
    return example.double() if drawn and isinstance(example, Tensor) and example.is_floating_point() else example


def _fakify(fake_mode: FakeTensorMode, placeholder: fx.Node, example: object) -> object:
    """Give a fresh fake of an input: Dynamo's own were changed by its run (t_, in-place writes that add history)."""
    if not isinstance(example, Tensor):
        value = placeholder.meta.get("example_value", example)
        return _natural(value) if isinstance(value, torch.SymInt) else example
    if type(example) not in (Tensor, torch.nn.Parameter, FakeTensor, torch.nn.Buffer):
        raise UnsupportedError(
            f"a tensor subclass ({type(example).__name__}) has no compiled form",
            location=from_stack_trace(placeholder.meta.get("stack_trace")),
        )
    context = TracingContext.try_get()
    symbolic = context.tensor_to_context.get(example) if context is not None else None
    source = dynamo_source(placeholder) if symbolic is None else symbolic.tensor_source
    static = symbolic is None and source is None
    return fake_mode.from_tensor(
        example, static_shapes=static, symbolic_context=symbolic, source=source, trace=symbolic is None
    )


def _natural(number: torch.SymInt) -> torch.SymInt | int:
    """Give an integer argument as a symbol, guarded to be no negative number, as no size is; else as a constant."""
    return number if number >= 0 else int(number)


def _input(placeholder: fx.Node, example: object) -> Input:
    source = dynamo_source(placeholder)
    name = user_name(source.name if source is not None else placeholder.name)
    if not isinstance(example, Tensor):
        return Input(name, "size")
    wrapped = not getattr(placeholder.meta.get("grapharg"), "is_tensor", True)
    if wrapped:
        return Input(name, "number")
    static = "_dynamo_static_input_type" in (placeholder.meta.get("tensor_dict") or {})
    kind = "tensor"
    if static or isinstance(example, torch.nn.Parameter):
        kind = "parameter" if isinstance(example, torch.nn.Parameter) or example.requires_grad else "buffer"
    return Input(name, kind, example.requires_grad)


def user_name(source: str) -> str:
    """Give Dynamo's source the way the user writes it: L['m']._modules['l']._parameters['weight'] is m.l.weight."""
    name = re.sub(r"^[LG]\['(\w+)'\]", r"\1", source)
    return re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", name)
