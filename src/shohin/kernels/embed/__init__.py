"""Gather and decode rows of the embedding table."""

from __future__ import annotations

from shohin.kernels.embed.op import Embed, embed

__all__ = ["Embed", "embed"]
