"""CUDA C++ to machine code with NVRTC, which needs neither a GPU nor a driver; kept on disk by content."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from shohin.devices.cuda.driver import Source
from shohin.errors import KernelBuild, NoDevice

__all__ = ["PACKAGE", "Compiler", "architecture"]

PACKAGE = Path(__file__).parents[2]
INCLUDES = (PACKAGE / "kernels", PACKAGE / "devices" / "cuda")
# Contraction would make a * b + c one rounding in some kernels and two in others; they write fmaf where they mean it.
OPTIONS: dict[str, Any] = {"std": "c++17", "fma": False}

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def architecture(arch: int) -> str:
    """What the compiler calls a compute capability times 10; sm_90 with its own instructions."""
    return "sm_90a" if arch == 90 else f"sm_{arch}"


class Compiler:
    """arch as ``architecture`` gives it. cache: a folder for compiled kernels, ~/.cache/shohin/kernels by default; a
    folder that can't be written is done without.
    """

    def __init__(self, arch: str, cache: Path | None = None) -> None:
        try:
            from cuda.bindings import nvrtc
            from cuda.core import Program, ProgramOptions
        except ImportError as error:
            raise NoDevice(f"device cuda needs the packages of shohin[cuda]: {error}") from None
        self.arch = arch
        self._program, self._options = Program, ProgramOptions
        _, major, minor = nvrtc.nvrtcVersion()
        self._version = f"{major}.{minor}"
        self._cache = cache or Path.home() / ".cache" / "shohin" / "kernels"

    def build(self, sources: Sequence[Source], progress: Callable[[int, int], None] | None = None) -> list[bytes]:
        """Machine code of each source, several at a time. progress(done, total) is called for those to be compiled."""
        texts = [self._text(source) for source in sources]
        paths = [self._cache / f"{self._key(*pair)}.cubin" for pair in zip(sources, texts, strict=True)]
        codes = [_read(path) for path in paths]
        missing = [i for i, code in enumerate(codes) if code is None]
        if missing and progress is not None:
            progress(0, len(missing))
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for done, (i, code) in enumerate(
                zip(missing, pool.map(lambda i: self._compile(sources[i]), missing), strict=True)
            ):
                codes[i] = code
                _keep(paths[i], code)
                if progress is not None:
                    progress(done + 1, len(missing))
        return [code for code in codes if code is not None]

    def compile_log(self, source: Source) -> tuple[bytes, str]:
        """Machine code, and what the assembler says of registers, spills and shared memory."""
        return self._run(source, ptxas_options=["-v"])

    def _compile(self, source: Source) -> bytes:
        return self._run(source)[0]

    def _run(self, source: Source, **more: Any) -> tuple[bytes, str]:
        path = PACKAGE / source.path
        options = self._options(
            arch=self.arch,
            define_macro=list(source.macros),
            include_path=[str(folder) for folder in INCLUDES],
            **OPTIONS,
            **more,
        )
        log = _Log()
        try:
            program = self._program(path.read_text(), code_type="c++", options=options)
            code = program.compile("cubin", name_expressions=(), logs=log)
        except Exception as error:
            raise KernelBuild(f"{source.path} ({source.entry}) does not build for {self.arch}: {error}") from None
        return bytes(code.code), str(log)

    def _text(self, source: Source) -> str:
        """The source with everything that it includes, which is what the cache is keyed by."""
        seen: dict[Path, str] = {}
        todo = [PACKAGE / source.path]
        while todo:
            path = todo.pop()
            if path in seen:
                continue
            try:
                seen[path] = path.read_text()
            except OSError as error:
                raise KernelBuild(f"kernel source {source.path}: {error}; the installation is incomplete") from None
            for name in _INCLUDE.findall(seen[path]):
                todo += [folder / name for folder in (path.parent, *INCLUDES) if (folder / name).exists()][:1]
        return "\0".join(text for _, text in sorted(seen.items()))

    def _key(self, source: Source, text: str) -> str:
        parts = (self.arch, self._version, repr(sorted(OPTIONS.items())), repr(source.macros), text)
        return sha256("\0".join(parts).encode()).hexdigest()[:40]


class _Log:
    """Collects what the compiler writes."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        self._parts.append(text)

    def __str__(self) -> str:
        return "".join(self._parts)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes() or None
    except OSError:
        return None


def _keep(path: Path, code: bytes) -> None:
    """Write under another name, then rename: another process sees a whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        return
