"""What an image transformer asks of a GPU, beside PyTorch in bf16: joint attention and a ternary product.

    python bench/gpu_image.py

Joint attention of 24 heads x 4,608 tokens x 128 in both modes, and 1,536 and 4,608 rows times a random ternary
27,648 x 3,072. Medians of five rounds of replays of a captured graph, PyTorch as the peer. One JSON line each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from shohin.devices import Buffer, Device, Recorder, Step, device
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.gemm import gemm
from shohin.kernels.joint_attention import joint_attention

HEADS, TOKENS, DIM = 24, 4608, 128
OUTPUTS, INPUTS = 27648, 3072


def ours(gpu: Device, recorder: Recorder, out: Buffer, rows: int, count: int) -> float:
    """Device seconds of one play of a tape, replayed back to back."""
    recorder.output("out", out, "all")
    tape = recorder.finish()
    program, driver = tape._program, gpu.driver
    program.upload(Step.rows_only(rows))
    graph = program.graph(0, len(tape.calls))

    def play() -> None:
        driver.replay(graph)

    return timed(play, driver.synchronize, count)


def timed(play: Callable[[], Any], wait: Callable[[], None], count: int) -> float:
    """Seconds of one call, the median of five rounds of ``count``."""
    play()
    wait()
    found = []
    for _ in range(5):
        begin = perf_counter()
        for _ in range(count):
            play()
        wait()
        found.append((perf_counter() - begin) / count)
    return median(found)


def joint(gpu: Device, mode: str, rng: np.random.Generator) -> dict[str, Any]:
    """One mode, its first two heads held against float64."""
    operands = [rng.standard_normal((HEADS * TOKENS, DIM)).astype(np.float32) for _ in range(3)]
    buffers, out = [gpu.buffer(name, operands[0].shape) for name in "qkv"], gpu.buffer("out", (TOKENS, HEADS * DIM))
    for buffer, values in zip(buffers, operands, strict=True):
        gpu.write(buffer, values)
    tape = gpu.recorder("joint", 1)
    joint_attention(tape, *buffers, out, heads=HEADS, mode=mode)
    seconds = ours(gpu, tape, out, 1, 5)
    there = [torch.from_numpy(values).cuda().reshape(1, HEADS, TOKENS, DIM) for values in operands]
    attend = torch.nn.functional.scaled_dot_product_attention
    exact = attend(*(x[:, :2].double() for x in there))[0].permute(1, 0, 2).reshape(TOKENS, 2 * DIM).cpu().numpy()
    got = gpu.read(out)[:, : 2 * DIM].astype(np.float64)
    half = [x.bfloat16() for x in there]
    return {
        "joint_attention": mode,
        "ms": seconds * 1e3,
        "tflops": 4 * HEADS * TOKENS**2 * DIM / seconds / 1e12,
        "cosine": float((got * exact).sum() / np.linalg.norm(got) / np.linalg.norm(exact)),
        "torch_bf16_ms": timed(lambda: attend(*half), torch.cuda.synchronize, 20) * 1e3,
    }


def product(gpu: Device, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """A ternary weight of random blocks times ``rows`` random rows, beside cuBLAS in bf16."""
    fmt = FORMATS["PQ2_0"]
    blocks = rng.integers(0, 256, (OUTPUTS * INPUTS // fmt.block, fmt.block_bytes), np.uint8)
    blocks[:, :2] = np.array([0.02], "<f2").view(np.uint8)
    weight = gpu.pack(Tensor("w", (OUTPUTS, INPUTS), fmt, blocks.reshape(-1)))
    x, out = gpu.buffer("x", (rows, INPUTS)), gpu.buffer("out", (rows, OUTPUTS))
    gpu.write(x, rng.standard_normal(x.shape).astype(np.float32))
    tape = gpu.recorder("product", rows)
    gemm(tape, x, weight, out, activations="int8")
    seconds = ours(gpu, tape, out, rows, 5)
    a, b = torch.randn(rows, INPUTS, device="cuda").bfloat16(), torch.randn(INPUTS, OUTPUTS, device="cuda").bfloat16()
    peer = timed(lambda: a @ b, torch.cuda.synchronize, 20)
    tops = 2 * rows * OUTPUTS * INPUTS / seconds / 1e12
    return {"gemm": [rows, OUTPUTS, INPUTS], "ms": seconds * 1e3, "tops": tops, "over_cublas_bf16": peer / seconds}


def main() -> None:
    """Measure and print."""
    gpu, rng = device("cuda"), np.random.default_rng(0)
    for mode in ("fast", "exact"):
        print(json.dumps({"device": gpu.kernels, **joint(gpu, mode, rng)}), flush=True)
    for rows in (1536, 4608):
        print(json.dumps({"device": gpu.kernels, **product(gpu, rows, rng)}), flush=True)


if __name__ == "__main__":
    main()
