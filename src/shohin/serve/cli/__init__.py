"""The ``shohin`` command."""

from __future__ import annotations

from shohin.serve.cli.app import app, main

__all__ = ["app", "main"]
