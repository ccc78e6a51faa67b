"""A small character-level GPT that learns to write Python from the standard library of the running interpreter."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.measure import Compile, Progress, Run, train

BATCH = 8
STEPS = 300
CHARACTERS = 1_000_000
"""How much text is read."""


@dataclass(frozen=True)
class Size:
    """Dimensions of the model."""

    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 4


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.before_mlp = nn.LayerNorm(size.width)
        self.widen = nn.Linear(size.width, 4 * size.width)
        self.narrow = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, t, d))
        return x + self.narrow(F.gelu(self.widen(self.before_mlp(x))))


class GPT(nn.Module):
    """Gives the logits of the next character at every position, [N, T, vocabulary]."""

    def __init__(self, vocabulary: int, size: Size) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Parameter(0.02 * torch.randn(size.context, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.predict = nn.Linear(size.width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.characters(tokens) + self.positions
        return self.predict(self.norm(self.blocks(x)))


class Loss(nn.Module):
    """Cross-entropy of the next character."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(self.model(tokens).flatten(0, 1), following.flatten())


@cache
def text() -> str:
    """Source files of the standard library in alphabetical order, ASCII only."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[str] = []
    length = 0
    for file in sorted(folder.glob("*.py")):
        part = file.read_text(encoding="utf-8", errors="ignore")
        if part.isascii():
            parts.append(part)
            length += len(part)
        if length >= CHARACTERS:
            break
    if not parts:
        raise FileNotFoundError(f"the interpreter keeps no Python sources in {folder}")
    return "".join(parts)[:CHARACTERS]


def vocabulary() -> list[str]:
    """The characters of the text, sorted."""
    return sorted(set(text()))


def encode(characters: str) -> Tensor:
    """Characters as numbers."""
    number = {c: i for i, c in enumerate(vocabulary())}
    return torch.tensor([number[c] for c in characters])


def batches(tokens: Tensor, size: Size, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random stretches of the text, and the same shifted by one character."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - size.context - 1, (BATCH,), generator=generator).tolist()
        stretches = torch.stack([tokens[s : s + size.context + 1] for s in starts])
        yield stretches[:, :-1].contiguous(), stretches[:, 1:].contiguous()


def write(model: Callable[[Tensor], Tensor], size: Size, start: str = "def ", length: int = 160) -> str:
    """Let the model go on from `start`, at every step with the last `context` characters."""
    letters, generator = vocabulary(), torch.Generator().manual_seed(2)
    tokens = encode(start.rjust(size.context))[None]
    for _ in range(length):
        with torch.no_grad():
            chances = (model(tokens[:, -size.context :])[0, -1] / 0.8).softmax(0)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)[None]], 1)
    return start + "".join(letters[i] for i in tokens[0, size.context :].tolist())


def run(name: str, compile: Compile, progress: Progress, steps: int = STEPS, size: Size = Size()) -> Run:
    """Train from a fixed seed; the score is the loss on the last tenth of the text, in bits a character."""
    tokens = encode(text())
    trained, tested = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]
    torch.manual_seed(0)
    loss = Loss(GPT(len(vocabulary()), size))
    optimizer = torch.optim.AdamW(loss.parameters(), lr=3e-3)
    result = train(name, loss, compile, optimizer, batches(trained, size, steps, seed=1), progress)
    loss.eval()
    compiled = compile(loss)
    with torch.no_grad():
        nats = [compiled(*batch).item() for batch in batches(tested, size, 10, seed=3)]
    result.score = f"{sum(nats) / len(nats) / 0.6931:.2f} bits a character"
    result.sample = write(loss.model, size)
    return result
