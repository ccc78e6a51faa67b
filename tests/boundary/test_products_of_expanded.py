"""Products of matrices whose rows lie over one another: expanded ones, windows, strided ones of any size."""

import pytest
import torch
from torch import Tensor

import isthmus

A = torch.linspace(-1.0, 2.0, 30, dtype=torch.float64).reshape(6, 5)
LAYOUTS = {
    "expanded rows": A[:1].expand(6, 5),
    "expanded columns": A[:, :1].expand(6, 5),
    "one number": A[:1, :1].expand(6, 5),
    "windows": A.reshape(-1)[:10].unfold(0, 5, 1),
    "windows that step": A.reshape(-1)[:15].unfold(0, 5, 2),
    "a column": A[:, :1],
    "every other": torch.cat([A, A], 1)[:, ::2],
    "as it is": A,
}
RIGHT, LEFT = A.T.sin().contiguous(), A.T.cos().contiguous()


MOVING = ("expanded rows", "one number", "windows", "as it is")
"""Those whose strides follow from their sizes, or are 0 or 1."""


@pytest.mark.parametrize("contractions", ["auto", "library"])
@pytest.mark.parametrize(("name", "dynamic"), [*((n, False) for n in LAYOUTS), *((n, True) for n in MOVING)])
def test_products(name: str, contractions: str, dynamic: bool) -> None:
    given = LAYOUTS[name]

    def products(a: Tensor) -> list[Tensor]:
        right, left = RIGHT[: a.shape[1]], LEFT[:, : a.shape[0]]
        return [a @ right, left @ a, a.mT @ left.mT, right.mT @ a.mT, a @ right[:, 0], left[0] @ a]

    isthmus.reset()
    compiled = isthmus.compile(products, capture="trace", dynamic=dynamic, options={"contractions": contractions})
    for got, want in zip(compiled(given), products(given.contiguous()), strict=True):
        torch.testing.assert_close(got, want)
