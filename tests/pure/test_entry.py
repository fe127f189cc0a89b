"""The command's entry: what happens before the command itself is there."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from shohin.serve.cli import main


def test_ctrl_c_while_the_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "shohin.serve.cli.app", Interrupted("app"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capfd.readouterr() == ("", "")
