"""How much memory a process may still take, before anything is asked of the system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
# The control group a container sees as its own: limit and use.
CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, or None where the system does not tell.

    Linux: MemAvailable of /proc/meminfo, and what a container's own limit leaves. Windows: available physical memory.
    Elsewhere: free pages, or all physical memory where free pages are not told (macOS), which is an upper bound.
    """
    found = [n for n in (_meminfo(), _cgroup()) if n is not None]
    if found:
        return min(found)
    return _windows() if sys.platform == "win32" else _sysconf()


def _meminfo() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _cgroup() -> int | None:
    try:
        limit, used = (int(path.read_text()) for path in CGROUP)
    except (OSError, ValueError):
        return None
    return max(0, limit - used)


def _sysconf() -> int | None:
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            n = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            continue
        if n > 0:
            return n
    return None


def _windows() -> int | None:
    import ctypes

    class Status(ctypes.Structure):
        """MEMORYSTATUSEX of the Windows API."""

        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "available", "a", "b", "c", "d", "e")),
        )

    status = Status()
    status.length = ctypes.sizeof(status)
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - the attribute exists on Windows only
    return int(status.available) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def shown(n: float) -> str:
    """A size for people: three digits and a binary unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if n < 1024 or unit == "TiB":
            return f"{n:.0f} bytes" if unit == "bytes" else f"{n:.3g} {unit}" if n < 1000 else f"{n:.0f} {unit}"
        n /= 1024
    raise AssertionError("unreachable")
