"""A model that says what it is told to, so that tests of text don't depend on weights."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from shohin.devices import Step, Ticket


class ScriptedModel:
    """After any prompt it says the ids of the script, then the end id for ever. With several scripts, one an answer."""

    def __init__(self, vocabulary: int, end: int, *scripts: Sequence[int], context: int = 512) -> None:
        self.config = SimpleNamespace(vocabulary=vocabulary, rows=vocabulary)
        self.cache = SimpleNamespace(pages=16)
        self.device = SimpleNamespace(name="scripted", runs_ahead=False)
        self.context = context
        self.scripts, self.end = scripts, end
        self.answers, self.said = -1, 0
        self.prompts: list[list[int]] = []
        self.plays = 0

    def tape(self, role: str, rows: int, *, wanted: int | None = None, outputs: Sequence[str] = ()) -> _Tape:
        return _Tape(self, role)


class _Tape:
    def __init__(self, model: ScriptedModel, role: str) -> None:
        self.model, self.role = model, role

    def play(self, step: Step, fetch: Sequence[str] = ()) -> Ticket:
        m = self.model
        m.plays += 1
        if self.role == "prefill":
            m.answers, m.said = m.answers + 1, 0
            m.prompts.append(step.tokens.tolist())
        else:
            m.said += 1
        script = m.scripts[m.answers % len(m.scripts)]
        best = script[m.said] if m.said < len(script) else m.end
        logits = np.full((1, m.config.vocabulary), -20.0, np.float32)
        logits[0, best] = 20.0
        values = {"status": np.zeros(1, np.int32), "ids": np.array([best], np.int32), "logits": logits}
        return Ticket({name: values[name] for name in fetch}, 0.0, 0.0)
