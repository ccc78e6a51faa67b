"""Random programs of views, writes and copies over a few tensors, drawn step by step while eager runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]
Step = tuple[str, Callable[[list[Tensor]], Tensor | None]]


@dataclass
class RandomProgram:
    """Arguments, steps on a growing list of tensors, and which of these are returned."""

    arguments: list[Tensor]
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        """Run it."""
        known = list(arguments)
        for _, step in self.steps:
            made = step(known)
            if made is not None:
                known.append(made)
        return [known[k] for k in self.outputs]

    def __repr__(self) -> str:
        about = [
            f"x{i} = {list(a.shape)} strides {list(a.stride())} offset {a.storage_offset()} grad {a.requires_grad}"
            for i, a in enumerate(self.arguments)
        ]
        return "\n".join([*about, *(text for text, _ in self.steps), f"return {self.outputs}"])


def views_of(x: Tensor, choose: Choose) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Draw a view that exists of x."""
    rank = x.dim()
    options: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("detach()", lambda t: t.detach()),
        ("view_as(self)", lambda t: t.view_as(t)),
        ("unsqueeze(0)", lambda t: t.unsqueeze(0)),
        ("unsqueeze(-1)", lambda t: t.unsqueeze(-1)),
        ("squeeze()", lambda t: t.squeeze()),
        ("flatten()", lambda t: t.flatten()),
        ("reshape(-1)", lambda t: t.reshape(-1)),
    ]
    if rank:
        d = choose(range(rank))
        n = x.shape[d]
        k, m = choose(range(max(n, 1))), choose((1, 2, 3))
        options += [
            (f"narrow({d}, {min(k, n)}, {n - min(k, n)})", lambda t: t.narrow(d, min(k, n), n - min(k, n))),
            (f"slice {d} {k}::{m}", lambda t: torch.ops.aten.slice.Tensor(t, d, k, None, m)),
            (f"split({m}, {d})[-1]", lambda t: t.split(m, d)[-1]),
            (f"split({m}, {d})[0]", lambda t: t.split(m, d)[0]),
            (f"chunk({m}, {d})[-1]", lambda t: t.chunk(m, d)[-1]),
            (f"expand_{m}", lambda t: t.unsqueeze(0).expand(m, *t.shape)),
            (f"movedim({d}, 0)", lambda t: t.movedim(d, 0)),
        ]
        if n:
            options += [
                (f"select({d}, {k})", lambda t: t.select(d, k)),
                (f"unbind({d})[{k}]", lambda t: t.unbind(d)[k]),
                (f"select({d}, {k - n})", lambda t: t.select(d, k - n)),
            ]
        if n >= m:
            options += [(f"unfold({d}, {m}, {s})", lambda t, s=s: t.unfold(d, m, s)) for s in (m, m + 1)]
        if n % 2 == 0 and n:
            options.append((f"unflatten({d}, (2, -1))", lambda t: t.unflatten(d, (2, n // 2))))
    if rank > 1:
        c = choose(range(rank - 1))
        options += [
            (f"transpose({c}, -1)", lambda t: t.transpose(c, -1)),
            (f"diagonal({c}, 0, 1)", lambda t: t.diagonal(c, 0, 1)),
            ("permute", lambda t: t.permute(*range(1, t.dim()), 0)),
            (f"flatten({c}, {c + 1})", lambda t: t.flatten(c, c + 1)),
            ("mT", lambda t: t.mT),
        ]
    if x.numel() > 3 and x.is_contiguous():
        total = x.numel()
        shape = (total // 2, 2) if total % 2 == 0 else (total,)
        start = x.storage_offset()
        options += [
            (f"view{shape}", lambda t: t.view(shape)),
            ("as_strided", lambda t: t.as_strided((total // 2, 2), (2, 1), start + total % 2)),
            ("as_strided gaps", lambda t: t.as_strided((max(1, total // 3),), (3,), start)),
        ]
    return choose(options)


def writes_of(x: Tensor, other: Tensor, choose: Choose) -> tuple[str, Callable[[Tensor, Tensor], object]] | None:
    """Draw a write to x, by a tensor that fits."""
    options: list[tuple[str, Callable[[Tensor, Tensor], object]]] = [
        ("mul_(1.5)", lambda t, o: t.mul_(1.5)),
        ("add_(0.25)", lambda t, o: t.add_(0.25)),
        ("sin_()", lambda t, o: t.sin_()),
        ("fill_(0.5)", lambda t, o: t.fill_(0.5)),
        ("zero_()", lambda t, o: t.zero_()),
        ("clamp_(min=-0.5)", lambda t, o: t.clamp_(min=-0.5)),
        ("masked_fill_(t > 0)", lambda t, o: t.masked_fill_(t > 0, 0.125)),
        ("copy_(t * 2)", lambda t, o: t.copy_(t * 2)),
        ("t += t", lambda t, o: t.add_(t)),
    ]
    if x.dim():
        options.append(("t[0] = t[-1] * 2", lambda t, o: t.__setitem__(0, t[-1] * 2)))
        options.append(("t[1:] += 1", _add_to_tail))
    try:
        fits = torch.broadcast_shapes(x.shape, other.shape) == x.shape
    except RuntimeError:
        fits = False
    if fits and not _clash(x, other):
        options += [
            ("add_(other)", lambda t, o: t.add_(o)),
            ("copy_(other)", lambda t, o: t.copy_(o)),
            ("mul_(other)", lambda t, o: t.mul_(o)),
            ("addcmul_(other, other)", lambda t, o: t.addcmul_(o, o)),
            ("lerp_(other, 0.3)", lambda t, o: t.lerp_(o.expand_as(t), 0.3)),
        ]
    return choose(options)


def _clash(x: Tensor, other: Tensor) -> bool:
    """Tell whether what eager computes would depend on the order in which it goes through memory."""
    same = x.shape == other.shape and x.stride() == other.stride() and x.storage_offset() == other.storage_offset()
    if same or x.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    dense = all(t.is_contiguous() or t.t().is_contiguous() if t.dim() < 3 else t.is_contiguous() for t in (x, other))
    return not dense and bool(_addresses(x) & _addresses(other))


def _addresses(x: Tensor) -> set[int]:
    places = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    return set(places.as_strided(x.shape, x.stride(), x.storage_offset()).reshape(-1).tolist())


def _add_to_tail(t: Tensor, o: Tensor) -> None:
    t[1:] += 1


def results_of(x: Tensor, other: Tensor, choose: Choose) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    """Draw a new tensor made of x."""
    options: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
        ("clone()", lambda t, o: t.clone()),
        ("sin()", lambda t, o: t.sin()),
        ("t * t", lambda t, o: t * t),
        ("sum() + t", lambda t, o: t + t.sum()),
        ("contiguous()", lambda t, o: t.contiguous()),
        ("empty_like copy", lambda t, o: torch.empty_like(t).copy_(t)),
        ("zeros", lambda t, o: torch.zeros(2, 3, dtype=torch.float64)),
    ]
    if x.shape == other.shape:
        options.append(("t * o", lambda t, o: t * o))
    return choose(options)


def arguments_of(choose: Choose, grad: bool) -> list[Tensor]:
    """Draw one to three arguments: contiguous, transposed, with gaps, or (without gradients) sharing memory."""
    made: list[Tensor] = []
    for _ in range(choose((1, 2, 2, 3))):
        kind = choose(("plain", "plain", "transposed", "gaps", "offset"))
        shape = choose(((4,), (2, 3), (4, 2), (2, 3, 2), (6,), ()))
        x = torch.randn(shape, dtype=torch.float64)
        if kind == "transposed" and x.dim() > 1:
            x = torch.randn(shape[::-1], dtype=torch.float64).permute(*range(len(shape))[::-1])
        elif kind == "gaps" and x.dim():
            x = torch.randn((*shape[:-1], shape[-1] + 1), dtype=torch.float64)[..., :-1]
        elif kind == "offset" and x.dim():
            x = torch.randn((shape[0] + 1, *shape[1:]), dtype=torch.float64)[1:]
        made.append(x.requires_grad_() if grad and choose((True, True, False)) else x)
    if not grad and choose((True, False, False)):
        base = made[0]
        made.append(choose((base, base.view_as(base), base[1:] if base.dim() else base, base.reshape(-1))))
        if made[-1].numel() > 2 and made[-1].dim():
            made.append(made[-1][:-1])
    return made


def draw(choose: Choose, *, grad: bool, length: int) -> RandomProgram:
    """Draw a program of at most that many steps, of those that eager accepts (what it refuses is tested elsewhere)."""
    program = RandomProgram(arguments_of(choose, grad))
    known = _sharing(program.arguments)
    for _ in range(length):
        i, j = choose(range(len(known))), choose(range(len(known)))
        kind = choose(("view", "view", "write", "write", "result", "turn"))
        quiet = choose((False, False, False, True))
        step = _step(kind, known, i, j, quiet, choose)
        if step is None:
            continue
        try:
            with torch.no_grad():
                made = step[1](known)
        except (RuntimeError, IndexError):
            continue
        if made is not None:
            if made.numel() > 64:
                continue
            known.append(made)
        program.steps.append(step)
    count = choose(range(1, 4))
    program.outputs = [choose(range(len(known))) for _ in range(count)]
    return program


def _sharing(arguments: Sequence[Tensor]) -> list[Tensor]:
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, Tensor] = {}
    for a in arguments:
        key = a.untyped_storage().data_ptr()
        storages.setdefault(key, a.untyped_storage().clone())
        made.setdefault(
            id(a), torch.empty(0, dtype=a.dtype).set_(storages[key], a.storage_offset(), a.shape, a.stride())
        )
    return [made[id(a)] for a in arguments]


def _step(kind: str, known: list[Tensor], i: int, j: int, quiet: bool, choose: Choose) -> Step | None:
    x, other = known[i], known[j]
    number = len(known)

    def quietly(function: Callable[[], Tensor | None]) -> Tensor | None:
        if not quiet:
            return function()
        with torch.no_grad():
            return function()

    note = " under no_grad" if quiet else ""
    if kind == "view":
        name, view = views_of(x, choose)
        return f"x{number} = x{i}.{name}{note}", lambda k: quietly(lambda: view(k[i]))
    if kind == "result":
        name, result = results_of(x, other, choose)
        return f"x{number} = {name} of x{i}, x{j}{note}", lambda k: quietly(lambda: result(k[i], k[j]))
    if kind == "turn":
        if x.dim() < 2 or math.prod(x.shape) == 0 or _has_views(x, known):
            return None  # torch takes views of a turned tensor again while it captures, and fails
        return f"x{i}.transpose_(0, 1)", lambda k: _turn(k[i])
    drawn = writes_of(x, other, choose)
    if drawn is None:
        return None
    name, write = drawn

    def run(k: list[Tensor]) -> None:
        def do() -> None:
            write(k[i], k[j])

        quietly(do)

    return f"x{i}: {name} with x{j}{note}", run


def _has_views(x: Tensor, known: Sequence[Tensor]) -> bool:
    storage = x.untyped_storage().data_ptr()
    return any(t is not x and t.untyped_storage().data_ptr() == storage for t in known)


def _turn(x: Tensor) -> None:
    x.transpose_(0, 1)
