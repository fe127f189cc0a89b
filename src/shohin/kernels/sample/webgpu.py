"""``sample`` on WebGPU: workgroups share a row of logits; no float64, so integers of 64 bits are made of two words."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target
from shohin.kernels.sample.op import Sample
from shohin.kernels.sample.settings import BIAS_WORDS, WORDS

# Logits of a workgroup: eight a thread.
SHARE = 2048
# Rounds of a search (top_k, top_p), and bytes that it settles one after the other.
ROUNDS, BYTES = 2, 4
FOLDER = "kernels/sample"


def layout(shares: int) -> dict[str, int]:
    """Where things lie in a row of ``work``, in words."""
    places = {"PEAK": 1, "BEST": 1, "CUT": 4 * ROUNDS, "STATES": 5 * ROUNDS * BYTES}
    places |= {"HISTOGRAMS": 3 * 256 * ROUNDS * BYTES, "GROUPS": 3 * shares}
    found, at = {}, 0
    for name, words in places.items():
        found[name], at = at, at + words
    return {**found, "ROW_WORDS": at}


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """Twelve over the capacity of wanted rows; those that a row's settings don't need end at once."""
    logits, settings, biases, history, ids, status = (cast(Buffer, operand) for operand in call.operands)
    rows, width = logits.shape
    vocabulary = cast(Sample, call.op).vocabulary
    shares = -(-vocabulary // SHARE)
    places = layout(shares)
    constants: dict[str, int] = {
        **places,
        "VOCABULARY": vocabulary,
        "WIDTH": width,
        "SHARES": shares,
        "WORDS": WORDS,
        "BIAS_WORDS": BIAS_WORDS,
        # The shares of all ids together stay below 2^64.
        "BITS": 64 - vocabulary.bit_length(),
    }
    work = Binding("work", target.scratch(4 * rows * places["ROW_WORDS"]), "array<atomic<u32>>", write=True)

    def bindings(last: bool) -> tuple[Binding, ...]:
        words = "array<i32>"
        return (
            Binding("logits", logits, "array<f32>"),
            Binding("settings", settings, words, write=last),
            Binding("biases", biases, words),
            Binding("history", history, words, write=last),
            Binding("status", status, words),
            Binding.step(),
            work,
            *([Binding("ids", ids, words, write=True)] if last else []),
        )

    def over_vocabulary(entry: str, *parts: str, **more: int) -> Dispatch:
        sources = tuple(f"{FOLDER}/{name}.wgsl" for name in ("sample", *parts, entry))
        return Dispatch(sources, entry, {**constants, **more}, bindings(last=False), (shares, rows, 1))

    words = places["ROW_WORDS"]
    clear = (f"{FOLDER}/clear.wgsl",)
    choose = tuple(f"{FOLDER}/{name}.wgsl" for name in ("sample", "search", "least", "choose"))
    return [
        Dispatch(clear, "clear", {"ROW_WORDS": words}, (Binding.step(), work), (-(-words // 256), rows, 1)),
        over_vocabulary("peak"),
        *(over_vocabulary("count", "search", ROUND=i, LEVEL=k) for i in range(ROUNDS) for k in range(BYTES)),
        over_vocabulary("weigh", "search", "least"),
        Dispatch(choose, "choose", constants, bindings(last=True), (rows, 1, 1)),
    ]
