"""Kernels that library calls can take over: the bias that a contraction adds to each row of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from isthmus.dialects import prim
from isthmus.passes.analysis.access import Index
from isthmus.passes.fusion.clusters import Cluster
from isthmus.passes.fusion.graph import Node, Value
from isthmus.passes.fusion.instructions import Instr
from isthmus.passes.fusion.merge import Merger


@dataclass(frozen=True)
class Bias:
    """A contraction that gives `result` = contraction + `bias` along its last dim."""

    dot: Node
    bias: Value
    result: Value


def take_biases(merger: Merger) -> dict[Node, Bias]:
    """Turn kernels that do nothing but add a bias to a contraction into a part of its call.

    Where more is fused into such a kernel the addition is free there, and stays.
    """
    found: dict[Node, Bias] = {}
    for cluster in list(merger.alive):
        bias = _bias(merger, cluster)
        if bias is not None:
            found[bias.dot] = bias
            merger.absorb(cluster, bias.dot, bias.bias)
    return found


def _bias(merger: Merger, cluster: Cluster) -> Bias | None:
    if len(cluster.frames) != 1 or len(cluster.draft.sinks) != 1 or len(cluster.draft.instrs) != 3:
        return None
    (sink,), own = cluster.draft.sinks, cluster.own
    result = own(sink.value)
    if not isinstance(sink.instr.op, prim.AddOp) or result.dtype not in ("f32", "f64"):
        return None
    for product, added in (sink.instr.args, sink.instr.args[::-1]):
        if product.kind == added.kind == "load":
            (dot, at), (bias, along) = _loaded(product), _loaded(added)
            dot, bias = own(dot), own(bias)
            called = dot.maker in merger.externs  # and no kernel of ours
            plain = called and isinstance(dot.maker.op, prim.DotOp) and len(dot.maker.operands) == 2
            alone = plain and not merger.is_read(dot, (cluster,))
            fits = at == sink.index and dot.shape == result.shape and bias.shape == dot.shape[-1:]
            if alone and fits and along == at[-1:] and bias is not dot and bias.strides is None:
                if not _comes_later(merger, bias, dot.maker):
                    return Bias(dot.maker, bias, result)
    return None


def _loaded(load: Instr) -> tuple[Value, Index]:
    return cast("tuple[Value, Index, bool]", load.data)[:2]


def _comes_later(merger: Merger, bias: Value, dot: Node) -> bool:
    """Whether the bias is not there yet when the contraction runs."""
    home = merger.home.get(bias)
    return home is not None and (home.last if isinstance(home, Cluster) else home.number) > dot.number
