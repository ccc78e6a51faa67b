"""Large matrices in pieces of rows: the same numbers, less memory, and what must stay whole stays whole."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.dialects.builtin import ModuleOp

import isthmus
from isthmus import ir
from isthmus.dialects import kernel, new_context, prim
from isthmus.driver import lowering
from isthmus.driver.api import trace
from isthmus.passes import pipelines
from isthmus.passes.memory import chunk_rows
from isthmus.passes.pipelines import INFERENCE, run_passes
from isthmus.runtime import interpret

ROWS, WIDTH, CLASSES = 512, 24, 1000
CUT = "chunk-rows{least=100000 most=600000 deep=1}"


def head(h, w, t, bias=None):
    """The loss of a linear layer over many classes, and all gradients."""
    given = [h, w] if bias is None else [h, w, bias]
    loss = F.cross_entropy(F.linear(h, w, bias), t)
    return loss.detach(), *torch.autograd.grad(loss, given)


def arguments(dtype=torch.float32, bias=False):
    torch.manual_seed(0)
    h, w = torch.randn(ROWS, WIDTH), torch.randn(CLASSES, WIDTH)
    t = torch.randint(0, CLASSES, (ROWS,))
    t[::5] = -100
    more = [torch.randn(CLASSES)] if bias else []
    return [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in (h, w, t, *more)]


def lowered(function, args, *passes: str) -> ModuleOp:
    module = trace(function, *args).module
    before = ("select-library", "decompose{to=elementary}", "simplify", "join-dots")
    run_passes(new_context(), module, ["functionalize", "decompose", *INFERENCE, *before, *passes])
    return module


def widest(module: ModuleOp) -> int:
    """The elements of the largest product."""
    return max(cast(int, ir.numel(op.y)) for op in module.walk() if isinstance(op, prim.DotOp))


def check_pieces(function, args) -> None:
    """Its logits are made in pieces of a quarter of the rows at most, and the numbers are those of whole ones."""
    whole, cut = lowered(function, args), lowered(function, args, "chunk-rows{least=100000 most=1200000 deep=1}")
    assert widest(whole) == ROWS * CLASSES
    assert widest(cut) <= ROWS // 4 * CLASSES
    ir.verify(cut)
    inputs = [a.detach() for a in args]
    for found, wanted in zip(
        interpret.run(ir.function(cut, "forward"), inputs),
        interpret.run(ir.function(whole, "forward"), inputs),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("bias", [False, True])
def test_pieces_give_the_same_numbers(bias):
    check_pieces(head, arguments(torch.float64, bias))


def test_products_add_in_place_and_pieces_share_memory():
    module = lowered(head, arguments(), CUT, "fuse", "schedule", "plan-memory")
    func = ir.function(module, "forward")
    externs = [op for op in kernel.launches(func) if isinstance(op, kernel.ExternOp)]
    assert len(externs) == 12
    logits = [op.places for op in externs if ir.shape_of(op.results[0]) == (ROWS // 4, CLASSES)]
    weights = [op.places for op in externs if ir.shape_of(op.results[0]) == (CLASSES, WIDTH)]
    assert len(logits) == len(weights) == 4
    assert len(set(logits)) == len(set(weights)) == 1
    whole = lowered(head, arguments(), "fuse", "schedule", "plan-memory")
    held = [ir.literal(ir.function(m, "forward"), "isthmus.temporary_bytes") for m in (module, whole)]
    assert cast(int, held[0]) * 3 < cast(int, held[1])


def test_it_can_be_left_out(monkeypatch):
    chosen = tuple(CUT if text == pipelines.CHUNK_ROWS else text for text in pipelines.KERNELS)
    monkeypatch.setattr(pipelines, "KERNELS", chosen)
    monkeypatch.setattr(lowering, "CHUNK_ROWS", CUT)
    seen: list[int] = []
    monkeypatch.setattr(chunk_rows, "chunk_rows", lambda *args: seen.append(1))
    for chunked in (True, False):
        isthmus.compile(head, capture="trace", options={"chunk_rows": chunked, "cache": False})(*arguments())
    assert seen == [1]


def test_the_size_of_a_piece_can_be_chosen():
    """One mebibyte at a time, whatever the rows are made from."""
    args = arguments()
    compiled = isthmus.compile(head, capture="trace", options={"chunk_rows": 1, "cache": False})
    for found, wanted in zip(compiled(*args), head(*args), strict=True):
        torch.testing.assert_close(found, wanted)
    module = lowered(head, args, "chunk-rows{least=2000000 most=1048576 deep=1}")
    assert widest(module) == ROWS // 2 * CLASSES
    for wrong in (0, -1, "1", 1.5):
        with pytest.raises(ValueError, match="chunk_rows"):
            isthmus.compile(head, options={"chunk_rows": wrong})


def test_products_of_short_rows_stay_whole():
    cut = lowered(head, arguments(), "chunk-rows{least=100000 most=600000}")
    assert widest(cut) == ROWS * CLASSES


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_machine_code_in_pieces(monkeypatch, dtype, tolerance):
    chosen = tuple(CUT if text == "chunk-rows" else text for text in pipelines.KERNELS)
    monkeypatch.setattr(pipelines, "KERNELS", chosen)
    args = arguments(dtype, bias=True)
    compiled = isthmus.compile(head, capture="trace", options={"cache": False})
    exact = head(*(a.detach().double().requires_grad_() if a.is_floating_point() else a for a in args))
    for _ in range(2):
        for found, wanted in zip(compiled(*args), exact, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    assert isthmus.last_call_native()


def test_what_is_wanted_whole_stays_whole():
    def probabilities(h, w):
        return torch.softmax(h @ w.t(), -1)

    def far(h, w):
        """Every row needs the largest of all rows."""
        z = h @ w.t()
        return (z / z.amax()).sum(-1)

    h, w, *_ = arguments()
    for function in (probabilities, far):
        assert widest(lowered(function, [h, w], CUT)) == ROWS * CLASSES


def head_in_time(h, w, t, bias=None):
    """The same of [batch, time, features], as language models write it."""
    given = [h, w] if bias is None else [h, w, bias]
    with torch.autocast("cpu", torch.bfloat16, enabled=h.dtype == torch.float32):
        z = F.linear(h, w, bias)
    loss = F.cross_entropy(z.to(h.dtype).view(-1, z.shape[-1]), t.view(-1))
    return loss.detach(), *torch.autograd.grad(loss, given)


def in_time(args):
    h, w, t, *more = args
    return [h.detach().view(4, ROWS // 4, WIDTH).requires_grad_(), w, t.view(4, -1), *more]


def soft_head_in_time(h, w, t, bias=None):
    """All arithmetic in three dims: smoothed targets, the mean of what each row gives."""
    given = [h, w] if bias is None else [h, w, bias]
    logs = torch.log_softmax(F.linear(h, w, bias), -1)
    loss = -(0.9 * logs.amax(-1) + 0.1 * logs.mean(-1)).mean()
    return loss.detach(), *torch.autograd.grad(loss, given)


@pytest.mark.parametrize("function", [head_in_time, soft_head_in_time])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_of_several_dims_are_one(function, bias):
    check_pieces(function, in_time(arguments(torch.float64, bias)))


@pytest.mark.parametrize("bias", [False, True])
def test_machine_code_of_rows_of_several_dims(monkeypatch, bias):
    chosen = tuple("chunk-rows{least=100000 most=300000 deep=1}" if t == "chunk-rows" else t for t in pipelines.KERNELS)
    monkeypatch.setattr(pipelines, "KERNELS", chosen)
    args = in_time(arguments(torch.float32, bias))
    compiled = isthmus.compile(head_in_time, capture="trace", options={"cache": False})
    exact = head_in_time(*(a.detach().double().requires_grad_() if a.is_floating_point() else a for a in args))
    for found, wanted in zip(compiled(*args), exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=3e-2, atol=3e-2)


def test_what_cannot_be_merged_leaves_no_trace():
    """No op of another block reads what the function has."""

    def function(h, w, b, mask):
        return torch.where(mask, b, F.linear(h, w)).amax(-1)

    h, w, _, bias = in_time(arguments(bias=True))
    mask = torch.zeros(4, ROWS // 4, CLASSES, dtype=torch.bool)
    block = ir.function(lowered(function, [h, w, bias, mask], CUT), "forward").body.block
    values = [*block.args, *(r for op in block.ops for r in op.results)]
    assert all(use.operation.parent is block for value in values for use in value.uses)


def test_a_number_of_each_row_is_not_taken_for_rows():
    """Both summands have three dims: of one all are rows, of the other the last is not."""

    def function(h, w, k, v):
        return F.linear(h, w).amax(-1) + F.linear(k, v)

    torch.manual_seed(0)
    shapes = (4, 8, 16, WIDTH), (CLASSES, WIDTH), (4, 8, WIDTH), (16, WIDTH)
    given = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    cut = lowered(function, given, "chunk-rows{least=1000 most=100000 deep=1}")
    ir.verify(cut)
    (found,) = interpret.run(ir.function(cut, "forward"), given)
    torch.testing.assert_close(found, function(*given))


def test_pieces_as_large_as_allowed_are_cut_once():
    size = 4 * ROWS * CLASSES
    cut = lowered(head, arguments(), f"chunk-rows{{least={size // 2} most={size // 2} deep=1}}")
    assert widest(cut) == ROWS // 2 * CLASSES


def test_a_loss_alone_needs_no_matrix():
    def loss(h, w, t):
        return F.cross_entropy(h @ w.t(), t)

    with torch.no_grad():
        assert widest(lowered(loss, [a.detach() for a in arguments()], CUT)) == ROWS // 4 * CLASSES


class Tied(nn.Module):
    """A weight that is looked up and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(CLASSES, 32), nn.LayerNorm(32)
        self.head = nn.Linear(32, CLASSES)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.norm(self.table(tokens))), t, label_smoothing=0.1)


def test_a_whole_step_with_a_tied_head(monkeypatch):
    chosen = tuple(CUT if text == pipelines.CHUNK_ROWS else text for text in pipelines.KERNELS)
    monkeypatch.setattr(pipelines, "KERNELS", chosen)
    counts: list[int] = []
    write = chunk_rows._Chunks.write
    monkeypatch.setattr(chunk_rows._Chunks, "write", lambda self: (counts.append(self.count), write(self)))
    torch.manual_seed(0)
    model = Tied()
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, eager)]
    step = isthmus.train_step(model, lambda m, *batch: m(*batch), optimizers[0], options={"cache": False})
    for _ in range(3):
        batch = torch.randint(0, CLASSES, (ROWS,)), torch.randint(0, CLASSES, (ROWS,))
        found, wanted = step(*batch), eager(*batch)
        optimizers[1].zero_grad()
        wanted.backward()
        optimizers[1].step()
        torch.testing.assert_close(found, wanted.detach())
    assert counts == [4]
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def of_itself(x: torch.Tensor) -> torch.Tensor:
    """Rows of a matrix against its columns."""
    z = x @ x.t()
    return (z @ z).sum(-1)


def turned(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A product that has both dims of its first factor, transposed."""
    return (a @ v).t() + 1


@pytest.mark.parametrize("function,shapes", [(of_itself, [(ROWS, WIDTH)]), (turned, [(ROWS, ROWS, 2), (2,)])])
def test_products_of_other_forms_give_the_same_numbers(function, shapes):
    torch.manual_seed(0)
    args = [torch.randn(s, dtype=torch.float64) for s in shapes]
    module = lowered(function, args, CUT)
    ir.verify(module)
    (found,) = interpret.run(ir.function(module, "forward"), args)
    torch.testing.assert_close(found, function(*args))
