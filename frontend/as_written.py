"""When a compiled function runs as it is written: where what calls it follows the operations, or tensors have no data.

Dispatch modes (make_fx, FakeTensorMode, a trace of ours around it), torch.jit.trace and forward-mode AD see operators
one by one. A program of ours would be a constant to them, and has no tangents.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from torch import Tensor, fx
from torch._C import _is_tracing, _len_torch_dispatch_stack
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import GlobalStateSource
from torch._guards import Guard, TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.compiler import set_stance

from isthmus.frontend.torch_private import is_wrapped_by_functorch


def is_followed() -> bool:
    """Tell whether something follows the operators that run now."""
    return _len_torch_dispatch_stack() > 0 or forward_ad._current_level >= 0 or bool(_is_tracing())


def have_no_data(leaves: Iterable[object]) -> bool:
    """Tell whether any of these is a tensor that only looks like one: fake, meta, or inside of a transform."""
    return any(isinstance(leaf, Tensor) and _has_no_data(leaf) for leaf in leaves)


def _has_no_data(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta or is_wrapped_by_functorch(tensor)


def is_followed_graph(graph: fx.GraphModule) -> bool:
    """Tell whether a graph that Dynamo hands over runs as it is, and have Dynamo ask again where that changes."""
    if TracingContext.try_get() is not None:
        install_guard(Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL))  # pyright: ignore[reportArgumentType]
    arguments = (node.meta.get("grapharg") for node in graph.graph.find_nodes(op="placeholder"))
    return forward_ad._current_level >= 0 or have_no_data(getattr(a, "example", None) for a in arguments)


@contextmanager
def dynamo_off() -> Generator[None]:
    """Run functions that Dynamo compiles as they are written."""
    with set_stance("force_eager"):
        yield
