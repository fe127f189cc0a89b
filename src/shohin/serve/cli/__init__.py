"""The ``shohin`` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point, see ``app.main``; Ctrl-C while it is still being imported ends it as quietly as later."""
    try:
        from shohin.serve.cli.app import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()
