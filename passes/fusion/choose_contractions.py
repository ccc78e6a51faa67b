"""Which products become kernels of ours: where a factor or the product then need not go through memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from isthmus.passes.analysis.products import Product
from isthmus.passes.fusion.ability import Ability
from isthmus.passes.fusion.align import align, links
from isthmus.passes.fusion.clusters import Cluster
from isthmus.passes.fusion.contract_price import Policy, dearer, product_of
from isthmus.passes.fusion.contraction import Contraction, classes_of, contraction, is_contraction, plain
from isthmus.passes.fusion.graph import Kind, Node, Value
from isthmus.passes.fusion.instructions import Refused, mask
from isthmus.passes.fusion.merge import BETWEEN, Merger, Refusal
from isthmus.passes.fusion.roots import price_of


def take_contractions(merger: Merger, fixed: frozenset[Value], policy: Policy, target: str = "cpu") -> None:
    """Turn library calls into kernels where their factors or their product need not go through memory.

    `fixed`: the buffers that the caller or other library calls read.
    """
    trial = _Contractions(merger, fixed, policy, Ability.of(target, tf32=policy.tf32))
    factors = trial.factors() if trial.ability.prologues else []
    for value in factors:
        trial.take_prologue(value)
    for node in list(trial.nodes):
        trial.take_epilogue(node)
        if node not in trial.own and trial.is_worth_it_alone(node):
            trial.take_alone(node)
    for value in factors:  # what a product alone was not worth one with an epilogue may be
        trial.take_prologue(value)


class _Contractions:
    """The products of a program, as kernels where they have become some."""

    def __init__(self, merger: Merger, fixed: frozenset[Value], policy: Policy, ability: Ability) -> None:
        self.merger, self.fixed, self.policy, self.ability = merger, fixed, policy, ability
        self.prices = merger.prices
        self.nodes = [n for n in merger.externs if is_contraction(n, ability, policy)]
        self.own: dict[Node, Contraction] = {}
        self._plain: dict[Node, Contraction | Refused] = {}
        self._products: dict[Node, Product | None] = {}

    def plain(self, node: Node) -> Contraction:
        """The kernel of a library call's product alone, tried once; Refused where there is none."""
        if node not in self._plain:
            try:
                self._plain[node] = self._rebuilt(node)
            except Refused as refused:
                self._plain[node] = refused
        found = self._plain[node]
        if isinstance(found, Refused):
            raise found
        return found

    def product(self, node: Node) -> Product | None:
        """What the model of costs is told about a library call's product alone."""
        if node not in self._products:
            try:
                self._products[node] = self._described(self.plain(node))
            except Refused:
                self._products[node] = None
        return self._products[node]

    def _described(self, made: Contraction) -> Product | None:
        classes = classes_of(made.dot, made.frames[made.dot], len(made.inner))
        return product_of(made.draft, classes, self.merger.builder.strides, self.prices)

    def loss(self, node: Node) -> float:
        """What a library call's product loses by being a kernel of ours, in bytes moved."""
        return self.policy.loss(node, self.product(node)) if self.policy.weighs else 0.0

    def is_worth_it_alone(self, node: Node) -> bool:
        """Whether a product with nothing around it becomes a kernel."""
        if self.ability.alone and not self.policy.weighs:
            return True
        return self.policy.alone and self.policy.takes_alone(node, self.product(node))

    def factors(self) -> list[Value]:
        """Buffers that only products read, and that a kernel computes."""
        found: dict[Value, None] = {}
        for node in self.nodes:
            for value in self.merger.externs[node]:
                if value.maker.kind is Kind.INLINE and isinstance(self.merger.home.get(value), Cluster):
                    found[value] = None
        return [v for v in found if v not in self.fixed]

    def take_prologue(self, value: Value) -> None:
        """Let the products that read a buffer compute it, where that moves less."""
        merger = self.merger
        home = merger.home.get(value)
        readers = [u for u in merger.readers.get(value, ()) if u is not home]
        products = [u.dot if isinstance(u, Contraction) else u for u in readers]
        if not isinstance(home, Cluster) or isinstance(home, Contraction) or not readers:
            return
        if not all(isinstance(n, Node) and n in self.nodes for n in products):
            self._refuse(value.maker, readers, "a kernel that multiplies nothing reads it too")
            return
        nodes = [cast(Node, n) for n in products]
        old = [home, *(u for u in readers if isinstance(u, Contraction))]
        price = self._price(old) + sum(value.nbytes for u in readers if not isinstance(u, Contraction))
        value.root = value.required = False
        try:
            new = self._without(value, home, nodes)
        except Refused as refused:
            self._refuse(value.maker, readers, refused.reason)
            new = None
        if new is not None and self.policy.weighs:  # what is computed inside has to be packed
            inside = [c for c in new if isinstance(c, Contraction) and c.dot in readers]
            price -= sum(self.policy.loss(c.dot, self._described(c)) for c in inside)
        if new is not None and self._price(new) - self._other_factors(new, readers) >= price:
            self._refuse(value.maker, readers, "computing it inside the product would cost more than reading it")
            new = None
        if new is None:
            value.root = value.required = True
            return
        self._exchange(old, new)

    def _without(self, value: Value, home: Cluster, nodes: list[Node]) -> list[Cluster]:
        """The products with the value computed inside, and what is left of the kernel that made it."""
        made: list[Cluster] = [self._rebuilt(n) for n in nodes]
        reads = {v for c in made for v in c.reads}
        outside = (home, *nodes, *(self.own[n] for n in nodes if n in self.own))
        stored = lambda v: v in reads or self.merger.is_read(v, outside)  # noqa: E731
        rest = {n: f for n, f in home.frames.items() if n is not value.maker}
        if any(stored(v) for n in rest for v in n.results):
            made.append(self.merger.builder.build(home.sizes, rest, stored))
        return made

    def _rebuilt(self, node: Node) -> Contraction:
        before, builder = self.own.get(node), self.merger.builder
        with _Anchored(node):
            if before is None:
                return plain(node, lambda v: True, builder, self.ability)
            written = set(before.writes)
            return contraction(node, before.sizes, before.frames, lambda v: v in written, builder, self.ability)

    def _other_factors(self, new: list[Cluster], readers: Iterable[Cluster | Node]) -> float:
        """What calls that become kernels moved already: their other factors and their results."""
        total = 0.0
        for cluster in new:
            if isinstance(cluster, Contraction) and cluster.dot in readers:
                total += cluster.dot.value.nbytes
                known = self.merger.externs[cluster.dot]
                total += sum(v.nbytes for v in cluster.reads if v in known)
        return total

    def take_epilogue(self, node: Node) -> None:
        """Let a product write what a pointwise kernel computes from it, where that moves less."""
        merger = self.merger
        result = node.value
        readers = [u for u in merger.readers.get(result, ()) if u is not self.own.get(node)]
        reader = readers[0] if len(readers) == 1 else None
        if not isinstance(reader, Cluster) or isinstance(reader, Contraction):
            return
        own = self.own.get(node)
        try:
            base = own if own is not None else self.plain(node)
            merged = self._with_epilogue(base, reader)
        except Refused as refused:
            self._refuse(node, [reader], refused.reason)
            return
        price = self._price([base, reader]) + self.prices.launch_bytes
        price -= self.loss(node) if own is None else 0.0
        if self._price([merged]) >= price:
            self._refuse(node, [reader], "together they would move more bytes")
            return
        self._exchange([reader] if own is None else [reader, own], [merged])

    def take_alone(self, node: Node) -> None:
        """Let a kernel make a product with nothing around it."""
        if node in self.own:
            return
        try:
            made = self.plain(node)
        except Refused:
            return
        self._exchange([], [made])

    def _with_epilogue(self, base: Contraction, reader: Cluster) -> Contraction:
        allowed = (Kind.INLINE, Kind.PARTIAL)
        if any(n.kind not in allowed for n in reader.frames):
            raise Refused("it needs whole rows of the product")
        inside = base if self.own.get(base.dot) is base else base.dot
        if self.merger.waits(reader, inside):
            raise Refused(BETWEEN)
        result = base.dot.value
        touched = [link for link in links(base, reader) if link[0] is result]
        sizes, frames = align((base.sizes, dict(base.frames)), (reader.sizes, dict(reader.frames)), touched)
        with _Anchored(base.dot):
            units = (base, base.dot, reader)
            stored = lambda v: self.merger.is_read(v, units)  # noqa: E731
            return contraction(base.dot, sizes, frames, stored, self.merger.builder, self.ability)

    def _exchange(self, old: list[Cluster], new: list[Cluster]) -> None:
        for cluster in new:
            if isinstance(cluster, Contraction):
                if cluster.dot in self.merger.externs:
                    self.merger.release(cluster.dot)
                    cluster.dot.kind = Kind.CONTRACT
                self.own[cluster.dot] = cluster
        self.merger.replace(old, new)

    def _price(self, clusters: list[Cluster]) -> float:
        return price_of(clusters, self.prices) + sum(map(self._dearer, clusters))

    def _dearer(self, cluster: Cluster) -> float:
        """What the arithmetic of a prologue costs more than that of a kernel."""
        if not isinstance(cluster, Contraction):
            return 0.0
        summed = mask(frozenset(range(len(cluster.sizes), len(cluster.draft.sizes))))
        return dearer(cluster.draft, summed, self.prices)

    def _refuse(self, first: Node, readers: Iterable[Cluster | Node], reason: str) -> None:
        for unit in readers:
            last = max(unit.frames, key=lambda n: n.number) if isinstance(unit, Cluster) else unit
            self.merger.refusals[first, last] = Refusal(first, last, reason)


class _Anchored:
    """While a kernel is tried its product counts as computed here, not as a library call."""

    def __init__(self, node: Node) -> None:
        self._node, self._kind = node, node.kind

    def __enter__(self) -> None:
        self._node.kind = Kind.CONTRACT

    def __exit__(self, *_: object) -> None:
        self._node.kind = self._kind
