"""What a step costs the host on WebGPU, and what each kernel costs the GPU.

    python bench/webgpu_encode.py --synthetic bonsai-1.7b --format q1_0 [--device webgpu] [--tier plain] [--rounds 50]

dispatches: of a decode step; dispatches_a_layer: those of its layers over their number. encode_us: encoding a step's
command buffer, through the native library's own calls; encode_public_us: through the documented methods; submit_us:
handing it over; upload_us: the step table; each also a dispatch. step_us: a whole play, waited for; ahead_us: a step of
a greedy run with steps in flight. gpu_us: kernels by the GPU's clock, by op, where the adapter has one. Medians. On a
software driver only the host's share says something. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from shohin.devices import Run, Step, Tape, device
from shohin.devices.webgpu import WebGpu
from shohin.devices.webgpu.encoding import public_encoder
from shohin.devices.webgpu.timing import kernel_times
from shohin.formats import open, synthetic_weights
from shohin.models import Model, build


def timed(rounds: int, work: Callable[[], object]) -> float:
    """Median microseconds."""
    times = []
    for _ in range(rounds):
        begin = perf_counter()
        work()
        times.append(perf_counter() - begin)
    return 1e6 * median(times)


def host_costs(gpu: WebGpu, tape: Tape, step: Step, rounds: int) -> dict[str, float]:
    """Encoding, submission and upload of one step."""
    program: Any = tape._program
    bound = program.bound(0, len(tape.calls))
    found = {
        "encode_us": timed(rounds, lambda: gpu.gpu._encode(bound, None)),
        "encode_public_us": timed(rounds, lambda: public_encoder(gpu.gpu.native)(bound, None)),
        "upload_us": timed(rounds, lambda: program.upload(step)),
    }
    submits = []
    for _ in range(3):
        buffer = gpu.gpu._encode(bound, None)
        begin = perf_counter()
        gpu.gpu.native.queue.submit([buffer])
        submits.append(perf_counter() - begin)
        gpu.gpu.wait()
    found["submit_us"] = 1e6 * median(submits)
    return found


def gpu_costs(gpu: WebGpu, tape: Tape, step: Step) -> dict[str, float]:
    """Microseconds by op, of the second of two plays."""
    kernel_times(gpu, tape, step)
    sums: dict[str, float] = defaultdict(float)
    for name, seconds in kernel_times(gpu, tape, step):
        sums[name] += 1e6 * seconds
    return {name: round(value, 1) for name, value in sums.items()}


def measure(model: Model, gpu: WebGpu, rounds: int, steps: int) -> dict[str, Any]:
    """All figures of one model."""
    tape = model.tape("decode", 1, wanted=1)
    pages = np.arange(model.cache.pages, dtype=np.int32)[None]
    step = Step.of([1], positions=[0], pages=pages, wanted=[0])
    tape.play(step)
    program: Any = tape._program
    sections = Counter[str]()
    for call, count in zip(tape.calls, program.dispatches, strict=True):
        sections[call.section] += count
    layers = sum(n for name, n in sections.items() if name.startswith("layer"))
    found: dict[str, Any] = {"dispatches": sum(program.dispatches), "layers": model.config.layers}
    found["dispatches_a_layer"] = layers / model.config.layers
    found |= host_costs(gpu, tape, step, rounds)
    for name in ("encode_us", "encode_public_us", "submit_us"):
        found[f"{name}_a_dispatch"] = found[name] / found["dispatches"]
    found["step_us"] = timed(steps, lambda: tape.play(step))
    begin = perf_counter()
    taken = sum(1 for _ in tape.follow(Run(step, steps)))
    found["ahead_us"] = 1e6 * (perf_counter() - begin) / taken
    if gpu.gpu.timestamps:
        found["gpu_us"] = gpu_costs(gpu, tape, step)
    return found


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--synthetic")
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--tier")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=5, help="steps that are played in full")
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.synthetic is None):
        parser.error("give a model file or --synthetic, one of the two")
    gpu = device(arguments.device, tier=arguments.tier)
    if not isinstance(gpu, WebGpu):
        parser.error(f"--device {arguments.device} is no webgpu device")
    weights = open(arguments.model) if arguments.model else synthetic_weights(arguments.synthetic, arguments.format)
    model = build(weights, gpu, context=512)
    named = {"model": str(arguments.model or arguments.synthetic), "format": weights.format, "device": gpu.kernels}
    print(json.dumps(named | measure(model, gpu, arguments.rounds, arguments.steps)))


if __name__ == "__main__":
    main()
