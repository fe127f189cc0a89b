"""The second half of a layer: output projection and feed-forward block."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shohin.devices import Device, Step, Weight
from shohin.errors import BadShape
from shohin.kernels.linear_add.op import linear_add
from shohin.kernels.norm_swiglu.op import FeedForward, norm_swiglu
from shohin.kernels.standalone.arrays import fill, target, values


def ffn(
    device: Device,
    output: Weight,
    block: FeedForward,
    hidden: NDArray[Any],
    attended: NDArray[Any],
    *,
    eps: float = 1e-6,
    activations: str = "exact",
) -> NDArray[Any]:
    """hidden += output . attended; n = RMSNorm(hidden) * norm; hidden += down . (silu(gate . n) * (up . n)) (S3.33).

    One submission. hidden holds at least h values and its first h are overwritten; attended holds at least as many as
    ``output`` has columns: nq * hd, which need not be h (S3.35, H.5). BadShape, in this order: hidden, attended, norm,
    then the matrices; nothing is written then. Returns hidden.
    """
    what = "ffn"
    if len(output.shape) != 2:
        raise BadShape(f"{what}: weight {output.name!r} has shape {list(output.shape)}, a matrix was expected")
    h, k = output.shape
    target(f"{what}: hidden", hidden, (h,), device)
    attended_values = values(f"{what}: attended", attended, k, device)
    block.norm.expect(f"{what}: norm", (h,), device)
    stream, source = device.buffer("ffn.hidden", (1, h)), device.buffer("ffn.attended", (1, k))
    tape = device.recorder(what, 1)
    linear_add(tape, source, output, stream, activations=activations)
    inner = tape.scratch("ffn.inner", (1, block.gate.shape[0]))
    norm_swiglu(tape, stream, block, inner, eps=eps, activations=activations)
    linear_add(tape, inner, block.down, stream, activations=activations)
    tape.output("hidden", stream, "rows")
    with device.lock:
        device.write(stream, values(f"{what}: hidden", hidden, h, device)[None])
        device.write(source, attended_values[None])
        return fill(hidden, tape.finish().play(Step.rows_only(1), ("hidden",))["hidden"])
