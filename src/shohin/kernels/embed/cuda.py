"""``embed`` on a GPU: a block a row."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.cuda.launch import STEP, Launch, Target
from shohin.devices.cuda.packing import LAYOUTS
from shohin.kernels.linear.cuda.plain import planes_of


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch over the row capacity."""
    table, out = cast(Weight, call.operands[0]), cast(Buffer, call.operands[1])
    fmt = table.format
    constants: dict[str, int | float | str] = {
        "FORMAT": fmt.name,
        "PLANES": LAYOUTS[fmt.name][1] if table.storage.layout.startswith("tiles") else 0,
        "DENSE": int(not fmt.quantised),
    }
    arguments = (*planes_of(table), out, STEP, table.shape[1])
    return [Launch("embed/embed.cu", "embed", constants, (target.rows, 1, 1), 256, arguments)]
