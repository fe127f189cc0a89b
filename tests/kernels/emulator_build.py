"""CUDA sources compiled for the CPU with g++ (tests/native/cuda), kept on disk by content."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from shohin.devices.cuda.compiler import INCLUDES, PACKAGE
from shohin.devices.cuda.driver import Source
from shohin.errors import KernelBuild

HERE = Path(__file__).parents[1]
NATIVE = HERE / "native" / "cuda"
CACHE = Path(os.environ.get("SHOHIN_EMULATOR_CACHE") or HERE / ".data" / "cuda_emulator")
FOLDERS = (NATIVE, *INCLUDES)
COMMON = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-g1",
    "-gdwarf-4",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-march=native",
)
# What a GPU faults on, or does differently from a CPU, becomes an illegal instruction, which the runtime reports.
TRAPS = ("-fsanitize=alignment,shift-exponent,bounds", "-fsanitize-undefined-trap-on-error")
# Libraries must not share the variables of functions that have one name in both, and only the entry's variables count.
ALONE = ("-fno-gnu-unique", "-fvisibility=hidden", "-fdata-sections", "-ffunction-sections", "-Wl,--gc-sections")
KERNEL = (*COMMON, "-O1", "-w", "-fno-extern-tls-init", *TRAPS, *ALONE)
RUNTIME = (*COMMON, "-O3", "-Wall", "-Wextra")

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\w+\)|alignas\(\w+\))?\s*([\w ]+?)\s+(\w+)\s*\[\s*\]")


def compiler() -> str | None:
    """Path of g++, or None without one; elsewhere than on Linux that name may be another compiler's."""
    return shutil.which("g++") if sys.platform == "linux" else None


@cache
def runtime() -> ctypes.CDLL:
    """The library that kernels run in."""
    texts = [path.read_text() for path in sorted(NATIVE.glob("*.[ch]pp"))]
    sources = [str(path) for path in sorted(NATIVE.glob("*.cpp"))]
    try:
        built = _built("runtime", RUNTIME, texts, sources)
    except subprocess.CalledProcessError as error:
        raise KernelBuild(f"the emulator in {NATIVE} does not build:\n{error.stderr}") from None
    library = ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)
    library.emulator_allocate.restype = ctypes.c_void_p
    library.emulator_allocate.argtypes = [ctypes.c_size_t]
    library.emulator_free.argtypes = [ctypes.c_void_p]
    library.emulator_free.restype = ctypes.c_bool
    library.emulator_holds.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.emulator_holds.restype = ctypes.c_bool
    library.emulator_learn.argtypes = [ctypes.c_bool]
    library.emulator_learn.restype = None
    library.emulator_mark.argtypes = [ctypes.c_void_p]
    library.emulator_mark.restype = None
    library.emulator_launch.restype = ctypes.c_char_p
    return library


def build(source: Source, arch: int) -> Path:
    """The shared library of one kernel; KernelBuild with the compiler's messages."""
    path = PACKAGE / source.path
    try:
        text = path.read_text()
    except OSError as error:
        raise KernelBuild(f"kernel source {source.path}: {error}") from None
    included = _included(text)
    kind, name = next(
        (m.groups() for t in (text, *included) for m in DYNAMIC.finditer(t)), ("unsigned char", "no_bytes")
    )
    macros = (
        *source.macros,
        ("__CUDA_ARCH__", str(arch * 10)),
    )
    parts = [
        '#include "shim.hpp"',
        *(f"#define {key} {value}" for key, value in macros),
        f'#line 1 "{path}"',
        text,
        f"#define ENTRY {source.entry}",
        f"#define SHARED_BYTES {source.shared}",
        f"#define SHARED_TYPE {kind}",
        f"#define SHARED_NAME {name}",
        '#include "entry.hpp"',
    ]
    flags = [*KERNEL, *(f"-I{folder}" for folder in FOLDERS)]
    shims = [path.read_text() for path in sorted(NATIVE.iterdir()) if path.suffix in (".hpp", ".cuh")]
    try:
        return _built(source.entry, flags, [*included, *shims], text="\n".join(parts))
    except subprocess.CalledProcessError as error:
        raise KernelBuild(f"{source.path} ({source.entry}) does not build for the emulator:\n{error.stderr}") from None


def location(library: Path, offset: int) -> str:
    """Source file and line of an instruction; empty if the tools to find it are missing."""
    tool = shutil.which("addr2line")
    if tool is None:
        return ""
    found = subprocess.run(
        [tool, "-i", "-s", "-e", str(library), hex(offset)], capture_output=True, text=True, check=False
    )
    lines = [line for line in found.stdout.split("\n") if line and "?" not in line]
    return " in " + ", called from ".join(dict.fromkeys(line.split(" ")[0] for line in lines)) if lines else ""


def _included(text: str) -> list[str]:
    """Our headers that a source includes, one level after the other."""
    seen: dict[Path, str] = {}
    todo = INCLUDE.findall(text)
    while todo:
        name = todo.pop()
        path = next((folder / name for folder in FOLDERS if (folder / name).exists()), None)
        if path is not None and path not in seen:
            seen[path] = path.read_text()
            todo += INCLUDE.findall(seen[path])
    return [seen[path] for path in sorted(seen)]


@cache
def _machine() -> str:
    """What -march=native and the compiler depend on."""
    try:
        flags = re.search(r"^flags.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    version = subprocess.run([compiler() or "g++", "--version"], capture_output=True, text=True, check=True).stdout
    return version + (flags.group() if flags else "")


def _built(
    name: str, flags: list[str] | tuple[str, ...], texts: list[str], inputs: Sequence[str] = (), text: str = ""
) -> Path:
    """Compile under another name, then rename: another process sees a whole file or none."""
    key = sha256("\0".join([_machine(), *flags, *texts, text]).encode()).hexdigest()[:24]
    target = CACHE / f"{name}-{key}.so"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as folder:
            made = Path(folder) / "made.so"
            if text:
                inputs = [str(Path(folder) / f"{name}.cpp")]
                Path(inputs[0]).write_text(text)
            command = [compiler() or "g++", *flags, "-o", str(made), *inputs]
            subprocess.run(command, capture_output=True, text=True, check=True)
            made.replace(target)
    return target
