"""Derivatives where torch's own formula, as it is traced, cannot be differentiated again everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Formula = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
"""(operands, results, a cotangent for each result of a float or complex dtype) -> the gradients of the operands."""


def determinant(operands: Sequence[Tensor], results: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """d = det A: Ā = d̄·conj(d)·A⁻ᴴ; of a singular A = U·diag(s)·Vᴴ, Ā = d̄·conj(det U·det Vᴴ)·U·diag(Πⱼ≠ᵢ sⱼ)·Vᴴ.

    Torch's choice for real tensors in eager mode (there only an exact 0 is singular). Traced, torch takes the second
    form for every matrix, and derivatives of singular vectors are infinite where two singular values are equal, as all
    are in U and V. Each form is computed on a matrix that suits it, where the other one is taken.
    """
    (a,), det, seed = operands, results[0], cotangents[0]
    if a.numel() == 0:
        return [torch.zeros_like(a)]
    count = a.shape[-1]
    if type(count) is int and count == 1:
        return [seed[..., None, None].clone()]
    pivots = torch.linalg.lu_factor_ex(a.detach()).LU.diagonal(dim1=-2, dim2=-1).abs()
    smallest = 8 * torch.finfo(a.dtype).eps * count * pivots.amax(-1)
    singular = (pivots.amin(-1) <= smallest)[..., None, None]
    eye = torch.eye(count, dtype=a.dtype, device=a.device)
    apart = torch.diag_embed(torch.arange(1, count + 1, dtype=a.dtype, device=a.device))
    scale = (seed * det.conj())[..., None, None]
    inverse = torch.linalg.solve(torch.where(singular, eye, a).mH, (scale * eye).expand(a.shape))
    u, s, vh = torch.linalg.svd(torch.where(singular, a, apart))
    phase = (torch.linalg.det(u) * torch.linalg.det(vh)).conj()
    one = torch.ones_like(s[..., :1])
    before, after = torch.cat([one, s[..., :-1]], -1), torch.cat([one, s[..., 1:].flip(-1)], -1)
    others = before.cumprod(-1) * after.cumprod(-1).flip(-1)
    cofactors = (u * ((seed * phase)[..., None] * others)[..., None, :]) @ vh
    return [torch.where(singular, cofactors, inverse).contiguous()]


FORMULAS: Mapping[str, Formula] = dict.fromkeys(
    ("_linalg_det.default", "linalg_det.default", "det.default"), determinant
)
