"""What the linear phases of a model cost on WebGPU by the GPU's own clock, without the model.

    python bench/webgpu_phases.py [--models 8b,1.7b] [--format Q1_0] [--rows 1,64] [--device webgpu] [--tier plain]

Random weights of the phase's shapes, six calls a tape; the median of five plays, each dispatch in a pass of its own,
which adds a few microseconds to each. us: of each dispatch of a call; gbps: bytes of weights over their sum; tops:
multiplications and additions over it, in 10^12 a second. One JSON line a phase.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

import numpy as np

from shohin.devices import Device, Step, Tape, Weight, device
from shohin.devices.webgpu import WebGpu
from shohin.devices.webgpu.timing import kernel_times
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

CALLS, PLAYS = 6, 5
# Hidden size, inner size; both have 1,024 outputs for keys and for values, and as many for queries as the hidden size.
MODELS = {"8b": (4096, 12288), "1.7b": (2048, 6144)}
VOCABULARY = 151669


def phases(model: str) -> dict[str, tuple[int, list[int]]]:
    """Inputs and outputs of each phase."""
    hidden, inner = MODELS[model]
    return {
        "qkv": (hidden, [hidden, 1024, 1024]),
        "o": (hidden, [hidden]),
        "gate_up": (hidden, [inner, inner]),
        "down": (inner, [hidden]),
        "head": (hidden, [VOCABULARY]),
    }


def random_weight(gpu: Device, rng: np.random.Generator, fmt: str, n: int, k: int) -> Weight:
    """Random codes under one scale."""
    made = FORMATS[fmt]
    blocks = rng.integers(0, 256, (n * k // made.block, made.block_bytes), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.02).tobytes(), np.uint8)
    return gpu.pack(Tensor("w", (n, k), made, blocks.reshape(-1)))


def tape_of(gpu: Device, phase: str, weights: list[Weight], norm: Weight, rows: int) -> Tape:
    """CALLS calls of a phase."""
    k = weights[0].shape[1]
    width = weights[0].shape[0] if phase == "gate_up" else sum(w.shape[0] for w in weights)
    x, out = gpu.buffer("x", (rows, k)), gpu.buffer("out", (rows, width))
    gpu.write(x, np.random.default_rng(2).standard_normal((rows, k)).astype(np.float32))
    gpu.write(out, np.zeros((rows, width), np.float32))
    tape = gpu.recorder(phase, rows)
    for _ in range(CALLS):
        if phase == "gate_up":
            ffn = FeedForward(norm, weights[0], weights[1], weights[0])
            norm_swiglu(tape, x, ffn, out, eps=1e-6, activations="int8")
        elif phase in ("o", "down"):
            linear_add(tape, x, weights[0], out, activations="int8")
        else:
            norm_linear(tape, x, norm, weights, out, eps=1e-6, activations="int8")
    return tape.finish()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="8b,1.7b")
    parser.add_argument("--format", default="Q1_0")
    parser.add_argument("--rows", default="1,64")
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--tier")
    asked = parser.parse_args()
    gpu = device(asked.device, tier=asked.tier)
    if not isinstance(gpu, WebGpu):
        parser.error(f"--device {asked.device} is no webgpu device")
    rng = np.random.default_rng(1)
    for model in asked.models.split(","):
        for phase, (k, outputs) in phases(model).items():
            weights = [random_weight(gpu, rng, asked.format, n, k) for n in outputs]
            ones = FORMATS["F32"].encode(np.ones(k, np.float32)).reshape(-1)
            norm = gpu.pack(Tensor("norm", (k,), FORMATS["F32"], ones))
            for rows in (int(one) for one in asked.rows.split(",")):
                if phase == "head" and rows > 1:
                    continue
                tape, step = tape_of(gpu, phase, weights, norm, rows), Step.rows_only(rows)
                kernel_times(gpu, tape, step)
                found = [seconds for _ in range(PLAYS) for _, seconds in kernel_times(gpu, tape, step)]
                each = len(found) // (PLAYS * CALLS)
                us = [1e6 * median(found[i::each]) for i in range(each)]
                line = {"device": gpu.kernels, "model": model, "format": asked.format, "rows": rows, "phase": phase}
                line |= {"us": [round(one, 1) for one in us]}
                line |= {"gbps": round(sum(w.nbytes for w in weights) / sum(us) / 1e3, 1)}
                line |= {"tops": round(2e-6 * rows * k * sum(outputs) / sum(us), 2)}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
