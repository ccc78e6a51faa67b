"""A convolutional classifier of scikit-learn's handwritten digits (1,797 images of 8 x 8)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from demo.measure import Compile, Progress, Run, train

BATCH = 128
EPOCHS = 25
TESTED = 397
"""Images that are not trained on."""


class Digits(nn.Module):
    """Three convolutions with batch normalisation, the second two at half the size; gives logits of [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
        )
        self.classify = nn.Linear(64 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images).flatten(1))


class Loss(nn.Module):
    """Cross-entropy of the classifier."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images), labels)


def data() -> tuple[Tensor, Tensor]:
    """Images in [0, 1] as [N, 1, 8, 8] and their labels, shuffled always in the same way."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(digits.target[order])


def batches(images: Tensor, labels: Tensor, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one size, every epoch in another order."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for part in order.split(BATCH)[: len(labels) // BATCH]:
            yield images[part], labels[part]


def steps(epochs: int = EPOCHS) -> int:
    """The number of steps of a run."""
    return epochs * ((len(load_digits().target) - TESTED) // BATCH)


def run(name: str, compile: Compile, progress: Progress, epochs: int = EPOCHS) -> Run:
    """Train from a fixed seed and test; the score is the accuracy on images never seen."""
    images, labels = data()
    torch.manual_seed(0)
    loss = Loss(Digits())
    optimizer = torch.optim.AdamW(loss.parameters(), lr=2e-3)
    result = train(name, loss, compile, optimizer, batches(images[TESTED:], labels[TESTED:], epochs), progress)
    loss.eval()
    with torch.no_grad():
        predicted = compile(loss.model)(images[:TESTED]).argmax(1)
    result.score = f"{(predicted == labels[:TESTED]).double().mean().item():.1%} accuracy"
    return result
