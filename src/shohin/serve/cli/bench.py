"""``shohin bench``: speed of a model file, or of random weights in a real model's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shohin import formats
from shohin.errors import BadRequest
from shohin.formats import SHAPES, Weights, synthetic_weights, write_synthetic
from shohin.serve.benchmark import Load, run_bench
from shohin.serve.cli.output import emit, note, progress_bar
from shohin.serve.loading import load, prepare


@dataclass(frozen=True)
class Setup:
    """What to measure: a synthetic shape in a format, kept in a file or not, or None for a named model; the load."""

    synthetic: str | None
    format: str
    keep: str | None
    seed: int
    load: Load

    def weights(self) -> Weights:
        """Random weights in memory, or written to the file that was named and opened from there."""
        if self.synthetic is None or self.synthetic not in SHAPES:
            raise BadRequest(
                f"--synthetic is {self.synthetic!r}, expected one of {', '.join(SHAPES)}", param="synthetic"
            )
        trained, wanted = SHAPES[self.synthetic].context, self.load.prompt + self.load.generate
        if wanted > trained:
            # Before hundreds of megabytes are made or written.
            raise BadRequest(
                f"{wanted} prompt and generated tokens do not fit {self.synthetic}'s context of {trained}; "
                f"ask for fewer",
                param="prompt",
            )
        if self.keep is None:
            return synthetic_weights(self.synthetic, self.format, self.seed)
        path = write_synthetic(self.keep, self.synthetic, self.format, self.seed)
        note(f"wrote {path}, {path.stat().st_size:,} bytes")
        return formats.open(path)


def bench(name: str | None, setup: Setup, loading: Mapping[str, Any], as_json: bool) -> None:
    """Load, measure, print."""
    weights = setup.weights() if name is None else name
    with progress_bar() as bar:
        model, _ = load(weights, progress=bar, **loading)
        prepare(model, setup.load.prompt, progress=bar)
        found = run_bench(model, setup.load, progress=bar)
    label = name if name is not None else f"{setup.synthetic} {setup.format}"
    if as_json:
        emit({"model": label, **{k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}})
        return
    print(f"{label} on {found['device']} ({found['kernels']}), {found['activations']} activations")
    print(f"  prefill  {found['prefill_tokens_per_s']:9.1f} tokens/s   ({found['prompt_tokens']} tokens)")
    print(f"  decode   {found['decode_tokens_per_s']:9.2f} tokens/s   ({found['generated_tokens']} tokens)")
    print(f"  first token after {found['first_token_s']:.3f} s; peak memory {found['peak_memory_bytes'] / 1e9:.2f} GB")
    for line in floors(found):
        print(line)


def floors(found: Mapping[str, Any]) -> list[str]:
    """The achieved figure beside what memory and, where it was measured, the chain of phases allow."""
    megabytes, bandwidth = found["bytes_per_token"] / 1e6, found["read_bandwidth_gb_s"]
    lines = [
        f"  {megabytes:.1f} MB a token at {bandwidth:.1f} GB/s: {found['decode_over_floor']:.2f} of what memory allows"
    ]
    if found["phase_us"] is not None:
        each = 1e6 / found["decode_tokens_per_s"]
        lines.append(
            f"  {each:.1f} us a token; floors: {found['stream_floor_us']:.1f} us of reading, "
            f"{found['chain_floor_us']:.1f} us of {found['phases']} phases at {found['phase_us']:.2f} us "
            f"(a barrier inside a launch: {found['barrier_us']:.2f} us)"
        )
    return lines
