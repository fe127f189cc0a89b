"""Profiles of a run, by token or by layer, on standard error (contract rows S0.32 to S0.39)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TextIO

from shohin.devices import Step, Tape, Ticket, Weight
from shohin.errors import BadRequest

OFF = ("", "0", "false", "no", "off")
ON = ("1", "true", "yes", "on")
MODES = ("token", "layer")


def parse_profile(value: str | None) -> str | None:
    """None, ``token`` or ``layer`` from a switch; 1, true, yes, on mean ``token``, and empty, 0, false, no, off none.

    Raises BadRequest for any other word: a switch that is merely present turns nothing on (T.12).
    """
    word = (value or "").strip().lower()
    if word in OFF:
        return None
    if word in ON:
        return "token"
    if word in MODES:
        return word
    raise BadRequest(f"profile is {value!r}, expected one of {', '.join(MODES + ON + OFF[1:])}", param="profile")


@dataclass
class TokenProfile:
    """One line per play: wall, host encode, device and the rest, in ms; then averages and effective bandwidth.

    Device times are those of the execution, where the device keeps the time. model_bytes: bytes that one decoded token
    reads. Only plays of one row count in the summary's bandwidth.
    """

    model_bytes: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    records: list[tuple[float, float, float, float]] = field(default_factory=list)

    def play(self, tape: Tape, step: Step, fetch: Sequence[str]) -> Ticket:
        """Play and record."""
        begin = perf_counter()
        ticket = tape.play(step, fetch, timed=True)
        wall = perf_counter() - begin
        encode, device = ticket.encode_seconds, ticket.device_seconds
        over = max(0.0, wall - encode - device)
        index = len(self.records)
        if step.rows == 1:
            self.records.append((wall, encode, device, over))
            label = f"token {index}"
        else:
            label = f"{tape.role} of {step.rows} rows"
        print(f"{label}: {_four(wall, encode, device, over)}", file=self.stream)
        return ticket

    def finish(self) -> None:
        """The summary; nothing when no token was recorded."""
        if not self.records:
            return
        n = len(self.records)
        wall, encode, device = (sum(r[i] for r in self.records) / n for i in range(3))
        over = max(0.0, wall - encode - device)
        rate = self.model_bytes / device / 1e9 if device > 0 else 0.0
        print(f"{n} tokens, average {_four(wall, encode, device, over)}, {rate:.1f} GB/s", file=self.stream)


@dataclass
class LayerProfile:
    """One submission per section; one line per layer, then total, average, minimum, maximum and the rate at which the
    layers' matrices were read (their bytes over the total), then the tail.

    On a device whose clock parts the phases, one line per phase follows: its time in all layers, its calls, and the
    bytes of its weights over that time.
    """

    stream: TextIO = field(default_factory=lambda: sys.stderr)

    def play(self, tape: Tape, step: Step, fetch: Sequence[str]) -> Ticket:
        """Play section by section and print."""
        ticket, times = tape.profile(step, fetch)
        layers = [(name, seconds) for name, seconds in times if name.startswith("layer")]
        for name, seconds in times:
            if name not in ("tail",) and not name.startswith("layer"):
                print(f"{name} = {seconds * 1e3:.3f}ms", file=self.stream)
        for name, seconds in layers:
            print(f"layer {int(name.split()[1]):02d} = {seconds * 1e3:.3f}ms", file=self.stream)
        if layers:
            values = [seconds * 1e3 for _, seconds in layers]
            print(
                f"layers: total {sum(values):.3f}ms, avg {sum(values) / len(values):.3f}ms, "
                f"min {min(values):.3f}ms, max {max(values):.3f}ms, {_layer_bytes(tape) / sum(values) / 1e6:.1f} GB/s",
                file=self.stream,
            )
        tail = sum(seconds for name, seconds in times if name == "tail")
        print(f"tail ({tail_label(tape, step)}) = {tail * 1e3:.3f}ms", file=self.stream)
        for line in phase_lines(tape, ticket):
            print(line, file=self.stream)
        return ticket

    def finish(self) -> None:
        """Everything was printed as it came."""


def phase_lines(tape: Tape, ticket: Ticket) -> list[str]:
    """Ops with weights of one shape together, in the order of the tape; none where the device has no clock."""
    if not ticket.calls:
        return []
    spent: dict[str, list[float]] = {}
    for call, seconds in zip(tape.calls, ticket.calls, strict=True):
        matrices = [one for one in call.operands if isinstance(one, Weight) and len(one.shape) > 1]
        shapes = " ".join(f"{n}x{k}" for n, k in (one.shape for one in matrices))
        # An embedding reads a row of its table.
        read = 0 if call.op.name == "embed" else sum(one.nbytes for one in matrices)
        sums = spent.setdefault(f"{call.op.name} {shapes}".strip(), [0.0, 0.0, 0.0])
        for i, more in enumerate((1.0, seconds, float(read))):
            sums[i] += more
    lines = []
    for name, (count, total, nbytes) in spent.items():
        rate = f", {nbytes / total / 1e9:.1f} GB/s" if nbytes and total > 0 else ""
        lines.append(f"phase {name} = {total * 1e3:.3f}ms in {count:.0f}{rate}")
    return lines


def _layer_bytes(tape: Tape) -> int:
    """Bytes of the matrices that all layers read."""
    operands = [operand for call in tape.calls if call.section.startswith("layer") for operand in call.operands]
    return sum(w.nbytes for w in operands if isinstance(w, Weight) and len(w.shape) == 2)


def tail_label(tape: Tape, step: Step) -> str:
    """Which tail ran (S0.34)."""
    ops = {call.op.name for call in tape.calls if call.section == "tail"}
    if not ops or not len(step.wanted):
        return "no lmhead"
    return "norm+lmhead+argmax" if "pick" in ops else "norm+lmhead"


def _four(wall: float, encode: float, device: float, over: float) -> str:
    named = zip(("wall", "encode", "device", "overhead"), (wall, encode, device, over), strict=True)
    return ", ".join(f"{name} {seconds * 1e3:.1f}ms" for name, seconds in named)
