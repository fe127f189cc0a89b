"""Muon for matrices of equal shape at once: momentum, made near-orthogonal by Newton-Schulz steps.

Source: Jordan et al., "Muon: An optimizer for hidden layers" (2024); the update is scaled to AdamW's usual size as in
Liu et al., "Muon is scalable for LLM training" (arXiv 2502.16982), so that both take the same learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonal(stack: Tensor) -> Tensor:
    """[m, n, k] -> bfloat16 of that shape, all singular values near 1."""
    x = stack.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Groups parameters by shape; ``lr`` and ``weight_decay`` as in AdamW."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for p in parameters:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": group} for group in by_shape.values()], defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            members = group["params"]
            gradients = torch.stack([p.grad for p in members])
            state = self.state[members[0]]
            moving = state.setdefault("momentum", torch.zeros_like(gradients))
            moving.lerp_(gradients, 1 - group["momentum"])
            update = orthogonal(gradients.lerp(moving, group["momentum"]))
            update = update.to(moving.dtype) * (0.2 * max(update.shape[-2:]) ** 0.5)
            torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(members, list(update.unbind()), alpha=-group["lr"])
