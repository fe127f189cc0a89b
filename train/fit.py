"""One training run: batches drawn from weighted streams, a schedule, held-out loss along the way."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from train.model import Decoder, Shape
from train.muon import Muon
from train.quantise import GRIDS
from train.tokens import Ids

MIX = {
    "play": 0.16, "renamed": 0.24, "talk": 0.10, "poem": 0.03, "milton": 0.05, "king-james": 0.13,
    "world-english": 0.09, "austen": 0.20,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run, apart from the data. tokens: how many are seen in all, epochs included.

    noise: share of the ids read, never of those to be told, that are replaced by ids drawn at random.
    """

    name: str
    shape: Shape = field(default_factory=Shape)
    grid: str = "ternary"
    optimizer: str = "muon"
    lr: float = 3e-3
    embedding_lr: float = 3e-3
    weight_decay: float = 0.1
    dropout: float = 0.1
    noise: float = 0.0
    rows: int = 32
    tokens: int = 60_000_000
    warmup: float = 0.03
    mix: dict[str, float] = field(default_factory=lambda: dict(MIX))
    teachers: tuple[str, ...] = ()
    teacher_share: float = 0.7
    seed: int = 1
    evaluations: int = 12
    seconds: float = 1e9
    speaks: bool = True

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:
            raise ValueError(f"grid is {self.grid!r}, expected one of {', '.join(GRIDS)}")

    @staticmethod
    def from_json(values: dict[str, object]) -> Recipe:
        """From what ``asdict`` gives, any part of it."""
        plain = dict(values)
        shape = Shape(**plain.pop("shape", {}))  # type: ignore[arg-type]
        plain["teachers"] = tuple(plain.get("teachers", ()))  # type: ignore[arg-type]
        return Recipe(shape=shape, **plain)  # type: ignore[arg-type]


@dataclass
class Outcome:
    """curve: (tokens seen, training loss, held-out loss of the plays), losses in nats a token."""

    recipe: Recipe
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    held_out: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    tokens: int = 0

    def save(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))


class Batches:
    """Windows of context + 1 ids from the training streams, each row from a stream drawn by weight."""

    def __init__(self, streams: dict[str, Ids], recipe: Recipe, device: str) -> None:
        names = [n for n in recipe.mix if recipe.mix[n] > 0 and f"{n}.train" in streams]
        parts = [streams[f"{n}.train"] for n in names]
        self._ids = torch.from_numpy(np.concatenate(parts).astype(np.int32)).to(device)
        sizes = torch.tensor([len(p) for p in parts], device=device)
        self._starts = sizes.cumsum(0) - sizes
        self._span = recipe.shape.context + 1
        self._room = (sizes - self._span).clamp(min=1)
        self._weights = torch.tensor([recipe.mix[n] for n in names], device=device)
        self._rows = recipe.rows
        self._draw = torch.Generator(device).manual_seed(recipe.seed)
        self._noise, self._vocabulary = recipe.noise, recipe.shape.vocabulary
        self._window = torch.arange(self._span, device=device)

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the model reads, the same without noise, and targets: int64 [rows, context]."""
        which = torch.multinomial(self._weights, self._rows, replacement=True, generator=self._draw)
        share = torch.rand(self._rows, generator=self._draw, device=which.device, dtype=torch.float64)
        at = self._starts[which] + (share * self._room[which]).long()
        windows = self._ids[(at[:, None] + self._window).clamp(max=len(self._ids) - 1)].long()
        read = windows[:, :-1]
        if self._noise:
            other = torch.randint(3, self._vocabulary, read.shape, generator=self._draw, device=read.device)
            lost = torch.rand(read.shape, generator=self._draw, device=read.device) < self._noise
            read = torch.where(lost & (read > 2), other, read)
        return read, windows[:, :-1], windows[:, 1:]


def held_out(model: Decoder, stream: Ids, device: str, rows: int = 16) -> float:
    """Mean loss in nats a token; windows overlap by half, so that all but the first tokens have half a context."""
    context = model.shape.context
    half = context // 2
    ids = torch.from_numpy(stream.astype(np.int64)).to(device)
    starts = list(range(0, max(1, len(ids) - half - 1), half))
    total, count = 0.0, 0
    model.eval()
    with (
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),
        torch.autocast(device, torch.bfloat16, enabled=device == "cuda"),
    ):
        for first in range(0, len(starts), rows):
            group = starts[first : first + rows]
            padded = torch.stack(
                [F.pad(w := ids[s : s + context + 1], (0, context + 1 - len(w)), value=-1) for s in group]
            )
            targets = padded[:, 1:].clone()
            for row, start in enumerate(group):
                if start:
                    targets[row, :half] = -1
            logits = model(padded[:, :-1].clamp(min=0)).float()
            total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum").item()
            count += int((targets >= 0).sum())
    model.train()
    return total / count


def fit(
    recipe: Recipe,
    streams: dict[str, Ids],
    device: str = "cpu",
    *,
    compiled: bool = False,
    say: Callable[[str], None] = print,
) -> tuple[Decoder, Outcome]:
    """Train by the recipe; the model that comes back is the last one, whose schedule has run out."""
    torch.manual_seed(recipe.seed)
    model = Decoder(recipe.shape, recipe.grid, recipe.dropout).to(device)
    teachers = [load(Path(path), device) for path in recipe.teachers]
    judge = torch.compile(loss_of) if compiled else loss_of
    if compiled:
        for each in (model, *teachers):
            each.faster()
    optimizers = _optimizers(model, recipe, device)
    batches = Batches(streams, recipe, device)
    steps = max(1, recipe.tokens // (recipe.rows * recipe.shape.context))
    every = max(1, steps // recipe.evaluations)
    outcome = Outcome(recipe)
    began, losses = time.monotonic(), []
    spent = 0.0
    for step in range(steps):
        # A run that would outlast its seconds is cooled down in time instead of being cut off.
        done = max(step / steps, spent / recipe.seconds)
        if done >= 1:
            break
        _schedule(optimizers, recipe, done)
        inputs, clear, targets = batches.next()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            with torch.no_grad():
                told = [teacher(clear) for teacher in teachers]
            loss = judge(model(inputs), targets, told, recipe.teacher_share)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        outcome.tokens += inputs.numel()
        if step % every == every - 1 or step == steps - 1:
            held = held_out(model, streams["play.validation"], device)
            mean = torch.stack(losses).mean().item()
            outcome.curve.append((outcome.tokens, mean, held))
            spent, losses = time.monotonic() - began, []
            seen = f"{outcome.tokens / 1e6:.1f}M tokens, {spent:.0f} s"
            say(f"{recipe.name}: {seen}, loss {mean:.3f}, held out {held:.4f}")
        elif step % 10 == 9:
            spent = time.monotonic() - began
    outcome.seconds = time.monotonic() - began
    for key in ("play.validation", "play.test", "talk.validation", "talk.test"):
        if key in streams:
            outcome.held_out[key] = held_out(model, streams[key], device)
    return model, outcome


def loss_of(logits: Tensor, targets: Tensor, told: Sequence[Tensor], share: float) -> Tensor:
    """Nats a token against the text, and with teachers' logits ``told`` also against the mean of what they expect."""
    logits = logits.float().flatten(0, 1)
    hard = F.cross_entropy(logits, targets.flatten())
    if not told:
        return hard
    soft = torch.stack([F.softmax(each.float().flatten(0, 1), -1) for each in told]).mean(0)
    # Cross-entropy and not divergence: the teachers' own entropy is a constant.
    return (1 - share) * hard - share * (soft * F.log_softmax(logits, -1)).sum(-1).mean()


def _optimizers(model: Decoder, recipe: Recipe, device: str) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "token_embd"]
    gains = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": [model.token_embd], "lr": recipe.embedding_lr, "weight_decay": recipe.weight_decay},
        {"params": gains, "lr": recipe.lr, "weight_decay": 0.0},
    ]
    found: list[torch.optim.Optimizer] = []
    if recipe.optimizer == "muon":
        found.append(Muon(matrices, recipe.lr, recipe.weight_decay))
    else:
        groups.append({"params": matrices, "lr": recipe.lr, "weight_decay": recipe.weight_decay})
    found.append(torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=device == "cuda"))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["full"] = group["lr"]
    return found


def _schedule(optimizers: Sequence[torch.optim.Optimizer], recipe: Recipe, done: float) -> None:
    """Linear warm-up, then a cosine down to nothing."""
    if done < recipe.warmup:
        share = (done + 1e-3) / recipe.warmup
    else:
        share = 0.5 * (1 + math.cos(math.pi * (done - recipe.warmup) / (1 - recipe.warmup)))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full"] * share


def save(model: Decoder, path: Path) -> None:
    """Shape, grid and weights."""
    torch.save({"shape": model.shape.dict(), "grid": model.grid, "state": model.state_dict()}, path)


def load(path: Path, device: str = "cpu") -> Decoder:
    """What ``save`` wrote, ready to be asked."""
    stored = torch.load(path, map_location=device, weights_only=True)
    model = Decoder(Shape(**stored["shape"]), stored["grid"]).to(device)
    model.load_state_dict(stored["state"])
    return model.eval()
