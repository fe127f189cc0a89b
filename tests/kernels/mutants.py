"""Changed copies of CUDA sources for the emulator: what a test must notice."""

from __future__ import annotations

import shutil
from pathlib import Path

import emulator_build
import pytest

from shohin.devices.cuda.compiler import INCLUDES, PACKAGE


def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, *others: str) -> Path:
    """A copy of ``kernels/<folder>``, and of ``others``, that the emulator builds from now on, includes first."""
    here = tmp_path / "kernels" / folder
    shutil.copytree(PACKAGE / "kernels" / folder, here)
    for name in others:
        shutil.copytree(PACKAGE / "kernels" / name, tmp_path / "kernels" / name)
    shutil.copytree(PACKAGE / "devices" / "cuda", tmp_path / "devices" / "cuda")
    monkeypatch.setattr(emulator_build, "PACKAGE", tmp_path)
    copies = (tmp_path / "kernels", tmp_path / "devices" / "cuda")
    monkeypatch.setattr(emulator_build, "FOLDERS", (emulator_build.NATIVE, *copies, *INCLUDES))
    return here


def change(path: Path, name: str, old: str, new: str) -> None:
    """Replace a piece of a source that is there once; ``name`` is the mutant's."""
    text = path.read_text()
    assert text.count(old) == 1, f"{name}: the line is no longer there"
    path.write_text(text.replace(old, new))
