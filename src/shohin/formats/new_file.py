"""Write a file whole or not at all: a nameless or temporary file beside the target, synced, then renamed over it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from shohin.errors import BadFile

Chunk = bytes | bytearray | memoryview


class NewFile:
    """An open file that does not have its final name yet; made by ``new_file``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.written = 0

    def write(self, data: Chunk) -> None:
        """Append all of ``data``; OSError when the disk or a limit says no."""
        view = memoryview(data).cast("B")
        while view:
            done = os.write(self._descriptor, view)
            view = view[done:]
            self.written += done


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], size: int) -> Iterator[NewFile]:
    """A file of about ``size`` bytes that appears at ``path`` only when the block ends without an exception.

    Until then an older file at ``path`` stays as it is, and nothing new is left behind, also after KeyboardInterrupt
    and, where the file system has nameless files (Linux), after the process was killed. BadFile with the path: folder
    missing or not writable, anything but a regular file at ``path``, too little space, or any failure while writing.
    """
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:
        raise BadFile(f"{os.fspath(path)!r}: is no file name: {error}") from None
    _check_target(target, size)
    temporary = target.with_name(f".shohin-{secrets.token_hex(8)}.tmp")
    descriptor = -1
    try:
        descriptor, nameless = _create(target.parent, temporary)
        file = NewFile(descriptor)
        yield file
        os.fsync(descriptor)
        if nameless:
            _give_name(descriptor, temporary)
        os.close(descriptor)
        descriptor = -1
        os.replace(temporary, target)
    except OSError as error:
        raise BadFile(
            f"{target}: could not be written: {error.strerror or error}; what was there is untouched"
        ) from error
    finally:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _check_target(target: Path, size: int) -> None:
    if target.is_dir():
        raise BadFile(f"{target}: is a folder; give the name of a file")
    if os.path.lexists(target) and not target.is_file():
        raise BadFile(f"{target}: is a device, a pipe or a socket, which would be replaced; give the name of a file")
    if not target.parent.is_dir():
        raise BadFile(f"{target}: the folder {target.parent} does not exist")
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise BadFile(f"{target}: the free space cannot be read: {error.strerror or error}") from error
    if free < size:
        raise BadFile(f"{target}: needs {size} bytes and {free} are free in {target.parent}")


def _create(folder: Path, temporary: Path) -> tuple[int, bool]:
    """A descriptor to write to, and whether the file still has no name."""
    if hasattr(os, "O_TMPFILE"):
        # Not every file system can name such a file afterwards; better to learn that before the writing.
        try:
            probe = _nameless(folder)
            try:
                _give_name(probe, temporary)
            finally:
                os.close(probe)
            return _nameless(folder), True
        except OSError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, 0o666), False


def _nameless(folder: Path) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)


def _give_name(descriptor: int, temporary: Path) -> None:
    # Python follows the link in /proc only when a folder descriptor makes it call linkat.
    proc = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        os.link(str(descriptor), temporary, src_dir_fd=proc, follow_symlinks=True)
    finally:
        os.close(proc)


def _sync_folder(folder: Path) -> None:
    # The new name survives a power cut only once the folder is on disk; where folders cannot be opened (Windows) or
    # synced, the file itself is safe and there is nothing more to do.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
