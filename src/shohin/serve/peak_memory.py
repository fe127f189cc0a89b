"""The most memory that this process has used."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["peak_memory_bytes"]

STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Peak resident bytes since the program began; 0 where the system does not tell (Windows).

    Linux: VmHWM of /proc/self/status, because getrusage's maximum counts what the parent process held at the start.
    """
    try:
        lines = STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return _by_usage()


def _by_usage() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
