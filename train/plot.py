"""The loss curves of ``train/results.json`` as a small SVG, drawn with nothing but text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WIDE, HIGH, LEFT, BELOW = 720, 400, 56, 44
COLOURS = {"bf16": "#5b6770", "ternary": "#c2410c", "sign": "#1d4ed8"}
LABELS = {"bf16": "bf16", "ternary": "ternary", "sign": "1-bit"}
LOW, TOP = 3.0, 5.2


def draw(results: list[dict[str, Any]]) -> str:
    """Held-out loss as lines, training loss (against teachers and text) dashed, over millions of tokens."""
    most = 90e6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="white"/>',
    ]

    def at(tokens: float, loss: float) -> str:
        x = LEFT + (WIDE - LEFT - 20) * tokens / most
        y = 16 + (HIGH - BELOW - 16) * (TOP - loss) / (TOP - LOW)
        return f"{x:.1f},{y:.1f}"

    for loss in (3.0, 3.5, 4.0, 4.5, 5.0):
        (x, y), end = at(0, loss).split(","), at(most, loss).split(",")[0]
        parts.append(f'<path d="M{x},{y}H{end}" stroke="#ddd"/><text x="{LEFT - 34}" y="{float(y) + 4}">{loss}</text>')
    for tokens in range(0, 91, 15):
        x = at(tokens * 1e6, LOW).split(",")[0]
        parts.append(f'<text x="{x}" y="{HIGH - BELOW + 20}" text-anchor="middle">{tokens}</text>')
    parts.append(f'<text x="{WIDE / 2}" y="{HIGH - 6}" text-anchor="middle">million tokens seen</text>')
    parts.append(f'<text x="{LEFT - 40}" y="12">nats a token</text>')
    for row, (name, colour) in enumerate(COLOURS.items()):
        run = next(r for r in results if r["recipe"]["name"] == name and r["stage"] == "final")
        held = [(seen, loss) for seen, _, loss in run["curve"]] + [(run["tokens"], run["held_out"]["play.validation"])]
        training = [(seen, loss) for seen, loss, _ in run["curve"]]
        for line, dash in ((held, ""), (training, ' stroke-dasharray="5 4"')):
            points = " ".join(at(seen, min(loss, TOP)) for seen, loss in line)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(
            f'<text x="470" y="{40 + 20 * row}" fill="{colour}">{LABELS[name]}: held out, dashed: training</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    found = json.loads((Path(__file__).parent / "results.json").read_text())
    Path(sys.argv[1]).write_text(draw(found))
