"""The token of each wanted row, drawn on the device, so that a step brings back nothing but ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Buffer, Device, Operand, Recorder, Step
from shohin.errors import BadShape
from shohin.kernels.sample import reference as plain
from shohin.kernels.sample.settings import BIAS_WORDS, WORDS, Choice, pack_choices

# The largest vocabulary.
MOST_IDS = 2**24


@dataclass(frozen=True)
class Sample:
    """Operands: logits [wanted, V], settings, biases, history, ids, status (see ``sample``). ints = (vocabulary,)."""

    name: ClassVar[str] = "sample"
    vocabulary: int

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(vocabulary,), ()."""
        return (self.vocabulary,), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op; ``pack_choices`` has checked the settings."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        logits, settings, biases, history, ids, status = operands
        plain.sample(self, plain.Tables(logits, settings, biases, history), ids, status, step)


@dataclass(frozen=True, eq=False)
class Drawing:
    """What a draw reads beside the logits, all int32: settings [wanted, WORDS] and biases [wanted, BIAS_WORDS] as
    ``pack_choices`` makes them, history [slots, vocabulary]: twice the id's count in the answer, plus one if it is in
    the prompt.
    """

    settings: Buffer
    biases: Buffer
    history: Buffer

    @classmethod
    def on(cls, device: Device, wanted: int, slots: int, vocabulary: int) -> Drawing:
        """Zeroed buffers: every row is PICKED."""
        return cls(
            device.buffer("settings", (wanted, WORDS), np.int32),
            device.buffer("biases", (wanted, BIAS_WORDS), np.int32),
            device.buffer("history", (slots, vocabulary), np.int32),
        )

    def write(self, choices: Sequence[Choice], history: NDArray[np.int32] | None = None) -> None:
        """Let the next steps choose so. history: int32 [slots, vocabulary], which rows without penalties don't need."""
        slots, vocabulary = self.history.shape
        settings, biases = pack_choices(choices, vocabulary, slots)
        device = self.settings.device
        device.write(self.settings, settings)
        if any(c.logit_bias for c in choices):
            device.write(self.biases, biases)
        if history is not None:
            device.write(self.history, history)


def sample(tape: Recorder, logits: Buffer, drawing: Drawing, ids: Buffer, status: Buffer, *, vocabulary: int) -> None:
    """Record, after ``pick``: ids[i] by the settings of wanted row i, in the order penalties and bias, top_k, top_p,
    min_p, temperature, draw (M.19).

    Rows whose status is not 0, and rows that are PICKED, keep their id. Otherwise the id is counted in the history and
    the row's index moves on, so that a following step needs nothing from the host.
    """
    rows, width = logits.shape
    logits.expect("sample", (tape.wanted, width), tape.device)
    if not 1 <= vocabulary <= min(width, MOST_IDS):
        raise BadShape(f"sample: a vocabulary of {vocabulary} asked of logits {width} wide; at most 2^24 are possible")
    history = drawing.history
    shapes = (
        (drawing.settings, (rows, WORDS)),
        (drawing.biases, (rows, BIAS_WORDS)),
        (history, (history.shape[0], vocabulary)),
        (ids, (rows,)),
        (status, (rows,)),
    )
    for buffer, shape in shapes:
        buffer.expect("sample", shape, tape.device)
        if buffer.dtype != np.int32:
            raise BadShape(f"sample: buffer {buffer.name!r} is {buffer.dtype}, int32 was expected")
    operands = (logits, drawing.settings, drawing.biases, history, ids, status)
    tape.add(Sample(vocabulary), operands, writes=(1, 3, 4))
