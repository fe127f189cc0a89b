"""``pick`` on WebGPU: workgroups share a row of logits, a second dispatch compares what they found."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target
from shohin.kernels.pick.op import Pick

# Logits of a workgroup: eight a thread.
SHARE = 2048


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """Two dispatches over the capacity of wanted rows."""
    logits, ids, status = (cast(Buffer, operand) for operand in call.operands)
    rows, width = logits.shape
    vocabulary = cast(Pick, call.op).vocabulary
    shares = -(-vocabulary // SHARE)
    found, pairs = target.scratch(8 * rows * shares), "array<vec2<u32>>"
    constants = {"VOCABULARY": vocabulary, "WIDTH": width, "SHARE": SHARE, "SHARES": shares}
    search = (
        Binding("logits", logits, "array<u32>"),
        Binding.step(),
        Binding("found", found, pairs, write=True),
    )
    choose = (
        Binding("found", found, pairs),
        Binding.step(),
        Binding("ids", ids, "array<i32>", write=True),
        Binding("status", status, "array<i32>", write=True),
    )
    parts = [("kernels/pick/pick.wgsl", f"kernels/pick/{entry}.wgsl") for entry in ("search", "choose")]
    return [
        Dispatch(parts[0], "search", constants, search, (shares, rows, 1)),
        Dispatch(parts[1], "choose", constants, choose, (rows, 1, 1)),
    ]
