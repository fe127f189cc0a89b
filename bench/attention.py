"""Attention alone on the cpu device: decode and prefill over a long cache, beside what the memory allows.

    python bench/attention.py [--model bonsai-1.7b] [--kv f16] [--threads 2] [--context 1024 4096 16384] [--rows 1 512]

The tape holds one ``attend`` a layer, each with a cache of its own, as a model's tape does: nothing stays in a
processor cache from one layer to the next. With one row (decode) ``over_floor`` is the time over that of reading the
cache once at the bandwidth measured in the same process; with more rows the last ones of the context attend at once,
and ``gflops`` counts two products a key, query head and dimension under the causal mask. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from shohin.devices import Device, Step, Tape, device
from shohin.formats.synthetic import SHAPES, ModelShape
from shohin.kernels.attend import KINDS, PAGE, Heads, LayerCache, attend
from shohin.serve.bandwidth import read_bandwidth


def record(place: Device, shape: ModelShape, kv: str, context: int, rows: int) -> Tape:
    """A tape of one ``attend`` a layer over caches of ``context`` positions."""
    heads = Heads(shape.heads, shape.kv_heads, shape.head)
    pages = -(-context // PAGE)
    recorder = place.recorder("attention", rows)
    rope = place.buffer("rope", (context, heads.dim))
    place.write(rope, np.full(rope.shape, 0.7, np.float32))
    qkv = place.buffer("qkv", (rows, heads.width))
    noise = np.random.default_rng(0)
    out = recorder.scratch("out", (rows, heads.query * heads.dim))
    place.write(qkv, noise.standard_normal(qkv.shape, np.float32))
    for layer in range(shape.layers):
        cache = LayerCache.allocate(place, f"layer {layer}", kv, (pages, heads.kv, PAGE, heads.dim))
        fill(cache, noise)
        attend(recorder, qkv, cache, rope, out, heads=heads)
    recorder.output("out", out, "rows")
    return recorder.finish()


def fill(cache: LayerCache, noise: np.random.Generator) -> None:
    """Random keys and values; one page's worth is enough, repeated."""
    for buffer in (cache.keys, cache.values):
        page = noise.integers(-127, 128, buffer.shape[1:])
        buffer.storage[:] = (page if buffer.dtype == np.int8 else page / 64).astype(buffer.dtype)
    for scales in (cache.key_scales, cache.value_scales):
        if scales is not None:
            scales.storage[:] = 1 / 64


def seconds(tape: Tape, step: Step, repeat: int) -> float:
    """Median time of a play after one that warms up."""
    tape.play(step)
    times = []
    for _ in range(repeat):
        begin = perf_counter()
        tape.play(step)
        times.append(perf_counter() - begin)
    return median(times)


def measure(place: Device, shape: ModelShape, kv: str, context: int, rows: int, repeat: int) -> dict[str, Any]:
    """One length of context and one number of rows."""
    tape = record(place, shape, kv, context, rows)
    positions = np.arange(context - rows, context)
    step = Step.of(np.zeros(rows, int), positions=positions, pages=np.arange(-(-context // PAGE))[None])
    each = seconds(tape, step, repeat)
    bytes_read = context * shape.layers * LayerCache.bytes_per_token(kv, shape.kv_heads, shape.head)
    products = 4 * shape.layers * shape.heads * shape.head * int((positions + 1).sum())
    return {"context": context, "rows": rows, "ms": each * 1e3, "kv_bytes": bytes_read, "gflops": products / each / 1e9}


def main() -> None:
    """Parse, measure each combination, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="bonsai-1.7b")
    parser.add_argument("--kv", choices=KINDS, default="f16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    place = device("cpu", threads=arguments.threads)
    shape = SHAPES[arguments.model]
    found = []
    for context in arguments.context:
        for rows in arguments.rows:
            found.append(measure(place, shape, arguments.kv, context, rows, arguments.repeat if rows == 1 else 1))
    speed = read_bandwidth(place)
    for entry in found:
        if entry["rows"] == 1:
            entry["over_floor"] = entry["ms"] / 1e3 / (entry["kv_bytes"] / speed)
    head = {"model": arguments.model, "kv": arguments.kv, "kernels": place.kernels, "read_bandwidth_gb_s": speed / 1e9}
    print(json.dumps(head | {"attention": found}))


if __name__ == "__main__":
    main()
