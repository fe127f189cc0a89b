"""Each room imports only the rooms above it: the folder list tells how a token is made."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shohin"
ROOMS = ["errors", "formats", "devices", "kernels", "models", "generate", "serve"]


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_modules(tree: ast.Module) -> list[str]:
    """Every module named by an import anywhere in a file: type-only imports and imports inside functions count."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module!r}: rooms are imported by their full names"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def offences(path: Path, text: str) -> list[str]:
    room = room_of(path)
    found = []
    for name in imported_modules(ast.parse(text)):
        parts = name.split(".")
        if parts[0] != "shohin" or len(parts) < 2 or parts[1] in ("_core", "__version__"):
            continue
        if parts[1] not in ROOMS or ROOMS.index(parts[1]) > ROOMS.index(room):
            found.append(f"{path.relative_to(SOURCE)} ({room}) imports {name}")
    return found


FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.stem == "errors")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    assert offences(path, path.read_text()) == []


def test_a_wrong_import_is_caught() -> None:
    inside = "def f():\n    from shohin.models import build\n"
    assert offences(SOURCE / "kernels" / "embed" / "op.py", inside)
    only_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shohin.serve import cli\n"
    assert offences(SOURCE / "formats" / "tensor.py", only_types)


def test_devices_know_no_op_by_name() -> None:
    ops = sorted(p.name for p in (SOURCE / "kernels").iterdir() if (p / "op.py").exists())
    assert ops
    for path in (SOURCE / "devices").rglob("*.py"):
        words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not words & set(ops), f"{path.name} names {words & set(ops)}"
