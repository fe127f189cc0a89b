"""What all tests share: the generated case files, the row marker, and a visible list of what was skipped."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(*ids): the contract rows and user cases that a test proves")


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of case files, written afresh by tests/cases/make_cases.py."""
    folder = tmp_path_factory.mktemp("cases")
    argv, sys.argv = sys.argv, ["make_cases.py", str(folder)]
    try:
        runpy.run_path(str(HERE / "cases" / "make_cases.py"), run_name="__main__")
    finally:
        sys.argv = argv
    return folder
