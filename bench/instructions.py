"""Instructions that the main kernels take per weight, counted by callgrind: a figure that other work can't disturb.

    python bench/instructions.py [--tier avx2] [--formats Q1_0 PQ2_0] [--size 2048] [--check-tiers PROGRAM]

Plays ``gemm`` with int8 activations on one thread: a matrix of size x size, one row (decode) and 64 rows (prefill).
Each is counted for 2 and for 6 plays, so that start-up cancels in the difference; quantising the input is part of a
play. Needs valgrind, cmake and a compiler; ``--check-tiers`` takes a program that is built already. Valgrind 3.19 knows
nothing of AVX-512, so the tier is AVX2. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FEW, MANY = 2, 6
PREFILL_ROWS = 64


def build(folder: Path) -> Path:
    """tests/native, built as the module is."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        sys.exit("cmake is needed: python -m pip install cmake")
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", "-DSHOHIN_CHECK_TIERS=ON"],
        [cmake, "--build", str(folder), "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
    return folder / "check_tiers"


def instructions(program: Path, case: list[str], plays: int) -> int:
    """Instructions of a whole run."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(program), "repeat", *case]
    done = subprocess.run([*command, str(plays)], capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        sys.exit(f"{' '.join(command)} failed: {done.stderr}")
    return int(found.group(1))


def per_weight(program: Path, tier: str, fmt: str, rows: int, size: int) -> float:
    """Instructions per weight and row."""
    case = [tier, fmt, str(rows), str(size), str(size)]
    more = instructions(program, case, MANY) - instructions(program, case, FEW)
    return more / (MANY - FEW) / (size * size * rows)


def commit() -> str:
    """What was measured, as far as git knows."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def main() -> None:
    """Count, print a line for each format and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", default="avx2")
    parser.add_argument("--formats", nargs="+", default=["Q1_0", "PQ2_0"])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--check-tiers", type=Path)
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed: it counts the instructions")
    with tempfile.TemporaryDirectory() as folder:
        program = arguments.check_tiers or build(Path(folder))
        found = {}
        for fmt in arguments.formats:
            decode = per_weight(program, arguments.tier, fmt, 1, arguments.size)
            prefill = per_weight(program, arguments.tier, fmt, PREFILL_ROWS, arguments.size)
            print(f"{fmt}, instructions per weight and row: {decode:.3f} for one row, {prefill:.3f} for {PREFILL_ROWS}")
            found[fmt] = {"decode": round(decode, 3), "prefill": round(prefill, 3)}
    print(
        json.dumps({"tier": arguments.tier, "size": arguments.size, "rows": PREFILL_ROWS, "commit": commit(), **found})
    )


if __name__ == "__main__":
    main()
