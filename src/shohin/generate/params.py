"""What a caller may ask of a generation, checked once, before anything else sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from shohin.errors import BadRequest
from shohin.kernels.sample.stages import STAGES

__all__ = ["GREEDY_BELOW", "MAX_LOGPROBS", "STAGES", "SamplingParams"]

GREEDY_BELOW = 1e-5
MAX_LOGPROBS = 20
_HUGE = 2**63 - 1


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one generation. Every error is a BadRequest whose ``param`` is the field's name.

    max_tokens: 0 or more; None means until the context is full. 0 reads the prompt and generates nothing. More than
        the context holds is allowed and ends with finish ``length``.
    temperature: 0 to 2; below 1e-5 the best token is taken (lowest id on a tie) and the seed is not used.
    top_k: keep the k best; 0 and -1 are off. top_p: 0 to 1, keep the smallest set of best tokens whose probability
        reaches top_p; 0 keeps one token, 1 is off. min_p: 0 to 1, keep tokens at least min_p times as probable as the
        best; 0 is off.
    repetition_penalty: 0.01 to 100, 1 is off; over every id of prompt and answer, a positive logit is divided by it
        and a negative one multiplied. presence_penalty, frequency_penalty: -2 to 2, subtracted once, or once per
        occurrence, from the logits of ids in the answer (not the prompt).
    logit_bias: id -> -100 to 100, added to the logit; ids are compared with the vocabulary at use.
    seed: 0 to 2^64 - 1; None and -1 draw one from the operating system. choice: index among several answers to one
        request (0 to 2^32 - 1), so that equal seeds give different answers.
    stop_ids: ids that end the answer, beside the model's own end ids; ignore_eos ignores the latter.
    logprobs: None, or 0 to 20 alternatives beside the chosen token, from the model's own logits, before any setting
        above changes them.
    order: the stages in the order in which they apply, each once. ``penalties`` stands for all penalties and the bias.
        The draw comes after them.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    choice: int = 0
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    order: tuple[str, ...] = STAGES

    def __post_init__(self) -> None:
        for name, low, high in _REALS:
            self._set(name, real(name, getattr(self, name), low, high))
        for name, low, high, optional in _WHOLES:
            value = getattr(self, name)
            if not (optional and value is None):
                self._set(name, whole(name, value, low, high))
        if self.seed == -1:
            self._set("seed", None)
        if not isinstance(self.ignore_eos, bool):
            raise BadRequest(f"ignore_eos is {_shown(self.ignore_eos)}, true or false was expected", param="ignore_eos")
        self._set("stop_ids", _ids(self.stop_ids))
        self._set("logit_bias", _bias(self.logit_bias))
        self._set("order", _order(self.order))

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken instead of a random one."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether any setting changes logits before the choice."""
        return (
            bool(self.logit_bias)
            or self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def check_vocabulary(self, vocabulary: int) -> None:
        """BadRequest for a biased or stop id that a vocabulary of this many ids does not have."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_ids", self.stop_ids)):
            for i in ids:
                if i >= vocabulary:
                    raise BadRequest(f"{name} names id {i}, the vocabulary has {vocabulary} ids", param=name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Read-only maps can't be pickled; the settings are made anew from what was given."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} | {"logit_bias": dict(self.logit_bias)}
        return _remade, (values,)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _remade(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


_REALS = (
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)
_WHOLES = (
    ("max_tokens", 0, _HUGE, True),
    ("top_k", -1, _HUGE, False),
    ("seed", -1, 2**64 - 1, True),
    ("choice", 0, 2**32 - 1, False),
    ("logprobs", 0, MAX_LOGPROBS, True),
)


def real(name: str, value: Any, low: float, high: float) -> float:
    """``value`` as a float from low to high; BadRequest for NaN, infinity, booleans, strings and everything else."""
    if _is(Real, value) and low <= value <= high:
        return float(value)
    raise BadRequest(f"{name} is {_shown(value)}, a number from {low:g} to {high:g} was expected", param=name)


def whole(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int from low to high; BadRequest for booleans, fractions, strings and everything else."""
    if _is(Integral, value) and low <= value <= high:
        return int(value)
    raise BadRequest(f"{name} is {_shown(value)}, a whole number from {low} to {high} was expected", param=name)


def _is(kind: type, value: object) -> bool:
    """Whether a value is a number of this kind; Python's booleans are integers, a caller's are a mistake."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _ids(value: object) -> frozenset[int]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise BadRequest(f"stop_ids is {_shown(value)}, a list of ids was expected", param="stop_ids")
    return frozenset(whole("stop_ids", i, 0, 2**31 - 1) for i in value)


def _bias(value: object) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise BadRequest(f"logit_bias is {_shown(value)}, a map from id to bias was expected", param="logit_bias")
    pairs = {whole("logit_bias", k, 0, 2**31 - 1): real("logit_bias", v, -100.0, 100.0) for k, v in value.items()}
    return MappingProxyType(pairs)


def _order(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(s, str) for s in value) and sorted(value) == sorted(STAGES):
        return tuple(value)
    raise BadRequest(f"order is {_shown(value)}, each of {', '.join(STAGES)} once was expected", param="order")


def _shown(value: object) -> str:
    """A short form for messages: a caller's number may have thousands of digits, his list millions of entries."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[:40]
    elif isinstance(value, list | tuple | dict | set | frozenset) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)} entries"
    text = repr(value) if isinstance(value, bool | int | float | str | bytes) or value is None else None
    return text or f"of type {type(value).__name__}"
