"""``shohin info``: what a file holds and what would run it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shohin.devices import Device
from shohin.errors import NoDevice
from shohin.formats import Weights
from shohin.formats.blocks import FORMATS
from shohin.models import configure
from shohin.serve.cli.output import emit, visible
from shohin.serve.named_device import named_device

DEVICES = ("cpu", "host")


def found_devices() -> list[str]:
    """Names of every GPU and adapter that the installed extras reach; what is not there is left out."""
    from shohin.devices.cuda.gpu import gpu_names

    names = [f"cuda:{i}" for i in range(len(gpu_names()))]
    try:
        from shohin.devices.webgpu import all_adapters

        names += [f"webgpu:{adapter.index}" for adapter in all_adapters()]
    except NoDevice:
        pass
    return names


def show_devices(as_json: bool, everything: bool = False) -> None:
    """Devices, kernel tiers and the format table, from the code itself; ``everything``: GPUs and adapters, too."""
    opened = {name: named_device(name) for name in (*DEVICES, *(found_devices() if everything else ()))}
    table = {fmt.name: {name: d.accepts(fmt) for name, d in opened.items()} for fmt in FORMATS.values()}
    tiers = {name: d.tiers for name, d in opened.items()}
    if as_json:
        kernels = {name: d.kernels for name, d in opened.items()}
        emit({"devices": list(opened), "kernels": kernels, "tiers": tiers, "formats": table})
        return
    console = Console()
    for name, d in opened.items():
        console.print(f"{name}: {d.kernels} (available: {', '.join(tiers[name])})", highlight=False)
    grid = Table("format", "GGUF id", "bits a weight", *opened)
    for fmt in FORMATS.values():
        bits = f"{8 * fmt.block_bytes / fmt.block:.4g}"
        grid.add_row(fmt.name, str(fmt.type_id), bits, *(table[fmt.name][name] for name in opened))
    console.print(grid)


def describe(weights: Weights, device: Device) -> dict[str, Any]:
    """The facts of ``shohin info MODEL --json``."""
    config = configure(weights)
    name = weights.metadata.get("general.name")
    return {
        "file": weights.source,
        "name": name if isinstance(name, str) else None,
        "architecture": weights.architecture,
        "format": weights.format,
        "parameters": weights.parameters,
        "file_bytes": weights.file_bytes,
        "context": config.trained_context,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocabulary": config.rows,
        "tied": config.tied,
        "device": device.name,
        "kernels": device.kernels,
        "tensors": weights.types,
        "run_as": {name: device.accepts(FORMATS[name]) for name in weights.types},
        "notes": list(weights.notes),
    }


def show_model(facts: dict[str, Any], as_json: bool) -> None:
    """Print what ``describe`` found."""
    if as_json:
        emit(facts)
        return
    grid = Table(show_header=False, box=None)
    grid.add_column()
    grid.add_column(overflow="fold")
    for key, value in facts.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            shown = "; ".join(value) or "–"
        else:
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        grid.add_row(key.replace("_", " "), Text(visible(shown)))
    Console().print(grid)
