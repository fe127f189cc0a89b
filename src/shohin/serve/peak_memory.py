"""The most memory that this process has used."""

from __future__ import annotations

import sys

__all__ = ["peak_memory_bytes"]


def peak_memory_bytes() -> int:
    """Peak resident bytes since the process began; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
