"""How well llama.cpp agrees with itself on SmolLM2 when settings that should not matter change.

    python bench/llama_with_itself.py SmolLM2-135M-Instruct.Q4_1.gguf

The yardstick for tests/models/test_smollm2.py: rounding activations to 8 bits turns a difference in the last bit of a
float into another code, and over 30 layers into logits that differ by tenths. Along the recorded ids of ten prompts:
prompts whose best ids are all the same, root mean square and largest difference of the recorded logits. The last line
is one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from llama_peer import Llama, version

RECORDED = Path(__file__).parents[1] / "tests" / "fixtures" / "llama_smollm2" / "greedy.json"
SETTINGS: dict[str, dict[str, Any]] = {
    "as recorded": {},
    "one thread": {"threads": 1},
    "prompt one id at a time": {},
    "cache in f32": {"kv": "f32"},
    "flash attention": {"flash": True},
}


def rows(llama: Llama, prompt: list[int], ids: list[int], single: bool) -> NDArray[np.float32]:
    """The logits from which each of ``ids`` would be picked."""
    llama.reset()
    first = [llama.feed([token]) for token in prompt][-1] if single else llama.feed(prompt)
    return np.stack([first, *(llama.feed([token]) for token in ids[:-1])])


def agreement(path: Path, name: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """One setting against the recording."""
    llama = Llama(path, **SETTINGS[name])
    same, differences = 0, []
    for answer in recorded["raw"].values():
        logits = rows(llama, answer["prompt"], answer["ids"], name == "prompt one id at a time")
        same += logits.argmax(axis=1).tolist() == answer["ids"]
        kept = np.take_along_axis(logits, np.array(answer["best"]), axis=1) - np.array(answer["best_logits"])
        probes = logits[:, recorded["probe"]] - np.array(answer["probe_logits"])
        differences += [kept.ravel(), probes.ravel()]
    llama.close()
    values = np.concatenate(differences)
    rms, largest = float(np.sqrt(np.square(values).mean())), float(np.abs(values).max())
    return {"same_prompts": same, "rms_difference": round(rms, 4), "largest_difference": round(largest, 4)}


def main() -> None:
    """All settings."""
    recorded = json.loads(RECORDED.read_text("utf-8"))
    found = {name: agreement(Path(sys.argv[1]), name, recorded) for name in SETTINGS}
    print(json.dumps({"prompts": len(recorded["raw"]), **found, "llama_cpp": version()}))


if __name__ == "__main__":
    main()
