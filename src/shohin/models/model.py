"""A model on a device: weights, cache and recorded tapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from shohin.devices import Device, Tape
from shohin.devices.beside import lies_beside
from shohin.errors import BadRequest, BadShape, OutOfMemory
from shohin.kernels.sample import MOST_IDS, Drawing, Sample
from shohin.models.cache import LARGEST_STEP, CachePlan, KVCache
from shohin.models.config import DecoderConfig
from shohin.models.decoder import Decoder, Graph

# Row capacities that tapes are recorded for; a step runs on the smallest that holds it.
CAPACITIES = (1, 2, 4, 8, 16, 32, 64, 128, LARGEST_STEP)
ALWAYS = ("ids", "status", "logits")

_TAP = re.compile(r"hidden\.([0-9]{1,9})")


def capacity(rows: int) -> int:
    """The smallest row capacity that holds ``rows``; BadShape beyond the largest."""
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= CAPACITIES[-1]:
        raise BadShape(f"a step of {rows!r} rows was asked; 1 to {CAPACITIES[-1]} fit, longer input goes in chunks")
    return next(c for c in CAPACITIES if rows <= c)


class Model:
    """context: positions a sequence may have. cache: ``pages`` of ``page`` positions in every layer.

    weight_bytes: packed weights, norms included. bytes_per_token: file bytes of all layers' matrices and the head,
    which decoding one token reads. kv_bytes_per_token: cache bytes of one position in all layers.
    """

    def __init__(self, decoder: Decoder, graph: Graph, plan: CachePlan, *, weight_bytes: int, streamed: int) -> None:
        self._decoder, self._graph = decoder, graph
        self._tapes: dict[tuple[str, int, int, tuple[int, ...], bool], Tape] = {}
        self._drawing: Drawing | None = None
        self.context, self.sequences, self.kv = plan.context, plan.sequences, plan.kind
        self.weight_bytes, self.bytes_per_token = weight_bytes, streamed
        self.kv_bytes_per_token = plan.bytes_per_token

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Two models over one cache would write over each other's keys."""
        raise TypeError("a model can't be copied or pickled: build another one from its weights")

    def __repr__(self) -> str:
        return f"<{self.config.architecture} of {self.config.layers} layers on {self.device.name}>"

    @property
    def config(self) -> DecoderConfig:
        """Shape and constants of the network."""
        return self._graph.config

    @property
    def device(self) -> Device:
        """Where the model lives."""
        return self._graph.network.table.device

    @property
    def activations(self) -> str:
        """``int8`` or ``exact``."""
        return self._graph.activations

    @property
    def cache(self) -> KVCache:
        """The pages of every layer."""
        return self._graph.cache

    @property
    def draws(self) -> bool:
        """Whether the device can follow steps that draw their tokens."""
        known = self.config.vocabulary <= MOST_IDS and lies_beside(Sample, self.device.name)
        return known and self.device.runs_ahead

    @property
    def drawing(self) -> Drawing:
        """What the row of a ``drawn`` tape is chosen by; in the device's memory from the first use on."""
        with self.device.lock:
            if self._drawing is None:
                self._drawing = Drawing.on(self.device, 1, 1, self.config.vocabulary)
            return self._drawing

    def tape(
        self, role: str, rows: int, *, wanted: int | None = None, outputs: Sequence[str] = (), drawn: bool = False
    ) -> Tape:
        """The tape for ``rows`` rows, ``wanted`` of which give logits (all by default); recorded once, then reused.

        Both are rounded up to a capacity. Plays may fetch ``ids``, ``status`` (int32 [wanted]), ``logits`` (float
        [wanted, rows of the head]) and, where ``outputs`` asks for them, taps ``hidden.<i>`` (float [rows, h]:
        0 the embedding, i after the i-th layer). drawn: the id of the one wanted row is chosen as ``drawing`` says,
        which moves on with every play. BadShape: more rows than the largest capacity. OutOfMemory: no room for the
        tape's intermediate values.
        """
        taps = self._taps(outputs)
        key = (role, capacity(rows), capacity(rows if wanted is None else max(1, wanted)), taps, drawn)
        with self.device.lock:
            if key not in self._tapes:
                self._tapes[key] = self._record(*key)
            return self._tapes[key]

    def _record(self, role: str, rows: int, wanted: int, taps: tuple[int, ...], drawn: bool) -> Tape:
        recorder = self.device.recorder(role, rows, min(rows, wanted))
        self._decoder.record(recorder, self._graph, taps, self.drawing if drawn else None)
        try:
            return recorder.finish()
        except MemoryError:
            raise OutOfMemory(
                f"the system has no memory for the intermediate values of {rows} rows, {recorder.wanted} of them with "
                f"{self.config.rows} logits; run shorter chunks or ask for fewer logits"
            ) from None

    def _taps(self, outputs: Sequence[str]) -> tuple[int, ...]:
        taps = set()
        for name in outputs:
            match = _TAP.fullmatch(name)
            if match and int(match[1]) <= self.config.layers:
                taps.add(int(match[1]))
            elif name not in ALWAYS:
                raise BadRequest(
                    f"output {name!r} is unknown; there are {', '.join(ALWAYS)} and hidden.0 to "
                    f"hidden.{self.config.layers}",
                    param="outputs",
                )
        return tuple(sorted(taps))
