"""The GGUF writer: read back by others, kinds kept, and all or nothing whatever fails on the way."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shohin.errors import BadFile, BadRequest, BadShape, ShohinError
from shohin.formats import Metadata, NewTensor, Value, read_gguf, write_gguf
from shohin.formats.blocks import FORMATS, by_name

F32 = by_name("F32")


def one(name: str = "a", n: int = 8) -> NewTensor:
    return NewTensor.encoded(name, np.arange(n, dtype=np.float32), F32)


@pytest.mark.parametrize("version", ["tiny_q1", "tiny_q2_g64", "tiny_q2_g128", "tiny_pq2", "tiny_yarn", "align_64_ok"])
def test_rewriting_a_file_changes_no_byte(cases: Path, tmp_path: Path, version: str) -> None:
    """The case files come from a writer of their own; metadata kinds, order, padding and data must survive."""
    source = cases / "gguf" / f"{version}.gguf"
    weights = read_gguf(source)
    write_gguf(tmp_path / "again.gguf", weights.metadata, weights.tensors.values())
    assert (tmp_path / "again.gguf").read_bytes() == source.read_bytes()


def test_pipes_sockets_and_links_to_them_are_never_replaced(tmp_path: Path) -> None:
    pipe, link, loop = tmp_path / "pipe", tmp_path / "link", tmp_path / "loop"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
    before = {p.name: p.lstat().st_mode for p in tmp_path.iterdir()}
    for target in (pipe, link, loop, tmp_path / "sock"):
        with pytest.raises(BadFile, match="is a device, a pipe or a socket"):
            write_gguf(target, {"general.architecture": "x"}, [one()])
    assert {p.name: p.lstat().st_mode for p in tmp_path.iterdir()} == before


def test_split_set_becomes_one_file(cases: Path, tmp_path: Path) -> None:
    weights = read_gguf(cases / "shards/tiny-00001-of-00003.gguf")
    write_gguf(tmp_path / "one.gguf", weights.metadata, weights.tensors.values())
    assert (tmp_path / "one.gguf").read_bytes() == (cases / "gguf/tiny_q1.gguf").read_bytes()


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_is_written_and_read(tmp_path: Path, name: str) -> None:
    layout = by_name(name)
    seed = sum(name.encode())
    values = np.random.default_rng(seed).standard_normal((3, 4, 2 * max(256, layout.block)), np.float32)
    path = write_gguf(
        tmp_path / "m.gguf", {"general.architecture": "x"}, [NewTensor.encoded("a", values, layout), one("b")]
    )
    found = read_gguf(path, dialect=name if layout.type_id == 42 else None)
    assert found.tensors["a"].format.name == name
    assert found.tensors["a"].shape == values.shape
    assert np.array_equal(found.tensors["a"].data, layout.encode(values).reshape(-1)), f"seed {seed}"
    assert np.array_equal(found.tensors["b"].decode(), np.arange(8))


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is the independent reader")
    values = np.random.default_rng(3).standard_normal((6, 256), np.float32)
    names = ["F32", "F16", "BF16", "Q4_0", "Q8_0", "TQ1_0", "TQ2_0"]
    plan = [NewTensor.encoded(n, values, by_name(n)) for n in names] + [one("odd", 5), one("last", 3)]
    metadata: dict[str, object] = {
        "general.architecture": "qwen3",
        "general.alignment": 128,
        "a.bool": True,
        "a.int": 7,
    }
    metadata |= {
        "a.big": 2**40,
        "a.negative": -5,
        "a.float": 0.25,
        "a.text": "é",
        "a.texts": ["x", "ü"],
        "a.ints": [1, -2],
    }
    metadata |= {"a.floats": np.array([0.5, 2], np.float64), "a.small": Value("u16", 9), "a.none": Value("[str]", [])}
    path = write_gguf(tmp_path / "m.gguf", metadata, plan)
    other = gguf.GGUFReader(path)
    kinds = gguf.GGUFValueType
    want = {"a.bool": kinds.BOOL, "a.int": kinds.UINT32, "a.big": kinds.UINT64, "a.negative": kinds.INT32}
    want |= {"a.float": kinds.FLOAT32, "a.text": kinds.STRING, "a.small": kinds.UINT16}
    for key, kind in want.items():
        assert other.fields[key].types == [kind], key
    assert other.fields["a.texts"].types == [kinds.ARRAY, kinds.STRING]
    assert other.fields["a.ints"].types[:2] == [kinds.ARRAY, kinds.INT32]
    assert other.fields["a.floats"].types[:2] == [kinds.ARRAY, kinds.FLOAT64]
    for key in ("a.bool", "a.int", "a.big", "a.negative", "a.float", "a.text", "a.texts", "a.ints"):
        assert other.fields[key].contents() == metadata[key], key
    assert [t.name for t in other.tensors] == [t.name for t in plan]
    for t, planned in zip(other.tensors, plan, strict=True):
        assert t.data_offset % 128 == 0
        raw = b"".join(np.asarray(c).tobytes() for c in planned.chunks())
        assert t.data.tobytes() == raw, t.name


def test_kinds_are_kept_and_can_be_changed(cases: Path, tmp_path: Path) -> None:
    weights = read_gguf(cases / "gguf/tiny_q1.gguf")
    assert isinstance(weights.metadata, Metadata)
    changed = weights.metadata.changed(
        {"qwen3.rope.freq_base": 5000, "new.count": 3, "new.wide": Value("u64", 3)}, drop=["general.name"]
    )
    found = read_gguf(write_gguf(tmp_path / "m.gguf", changed, [])).metadata
    assert isinstance(found, Metadata)
    assert found.kinds["qwen3.rope.freq_base"] == "f32" and found["qwen3.rope.freq_base"] == 5000.0
    assert found.kinds["new.count"] == "u32" and found.kinds["new.wide"] == "u64"
    assert "general.name" not in found


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"k": None}, "k: a NoneType"),
        ({"k": []}, "k: the kind of"),
        ({"k": [1, "a"]}, "k: the kind of"),
        ({"k": [True, 2]}, "k: the kind of"),
        ({"k": [[1]]}, "k: the kind of"),
        ({"k": 2**64}, "k: a int"),
        ({"k": 1e39}, "k: 1e\\+39 cannot be written as f32"),
        ({"k": Value("f64", 10**400)}, "cannot be written as f64"),
        ({"k": Value("u8", 256)}, "k: 256 cannot be written as u8"),
        ({"k": Value("u32", True)}, "k: True cannot be written as u32"),
        ({"k": Value("u32", None)}, "k: None cannot be written"),
        ({"k": Value("bool", 1)}, "k: 1 cannot be written as bool"),
        ({"k": Value("[u8]", "text")}, "k: 'text' is no sequence"),
        ({"k": Value("str", 3)}, "k: 3 is no text"),
        ({"k": "\ud800"}, "cannot be written as UTF-8"),
        ({"": 1}, "empty"),
        ({"k" * 70000: 1}, "longer than"),
        ({"general.alignment": 13}, "general.alignment is 13"),
        ({"general.alignment": Value("i32", 32)}, r"general.alignment is 32 \(i32\)"),
    ],
)
def test_metadata_that_no_file_can_hold(tmp_path: Path, metadata: dict[str, object], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        write_gguf(tmp_path / "m.gguf", metadata, [])
    assert not list(tmp_path.iterdir())


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(BadRequest, match="no kind"):
        Value("u128", 1)


def test_plans_that_no_file_can_hold(tmp_path: Path) -> None:
    q1 = by_name("Q1_0")
    for plan, error, named in (
        ([one("a"), one("a")], BadRequest, "'a' was given twice"),
        ([one("")], BadRequest, "0 bytes long"),
        ([one("x" * 64)], BadRequest, "64 bytes long"),
        ([NewTensor("a", (2, 64), q1, list)], BadShape, "'a' has rows of 64"),
        ([NewTensor("a", (), F32, list)], BadShape, "'a' has the shape"),
        ([NewTensor("a", (1, 1, 1, 1, 1), F32, list)], BadShape, "'a' has the shape"),
        ([NewTensor("a", (0, 8), F32, list)], BadShape, "'a' has the shape"),
        ([NewTensor("a", (8,), F32, lambda: [bytes(31)])], BadShape, "takes 32 bytes and its source gave 31"),
        ([NewTensor("a", (8,), F32, lambda: [bytes(31), bytes(2)])], BadShape, "gave more"),
    ):
        with pytest.raises(error, match=named):
            write_gguf(tmp_path / "m.gguf", {}, plan)
        assert not list(tmp_path.iterdir())


@pytest.mark.row("C13")
def test_values_that_cannot_be_encoded_are_named(tmp_path: Path) -> None:
    rows = np.zeros((3, 128), np.float32)
    rows[2, 5] = np.nan
    plan = NewTensor.encoded_rows("blk.0.ffn_up.weight", (3, 128), by_name("Q1_0"), lambda: (rows[:2], rows[2:]))
    with pytest.raises(BadFile, match=r"'blk\.0\.ffn_up\.weight', from row 2"):
        write_gguf(tmp_path / "m.gguf", {}, [plan])
    assert not list(tmp_path.iterdir())


def test_conversion_is_streamed(cases: Path, tmp_path: Path) -> None:
    weights = read_gguf(cases / "gguf/tiny_q1.gguf")
    f16 = by_name("F16")
    path = write_gguf(
        tmp_path / "m.gguf", weights.metadata, [NewTensor.converted(t, f16) for t in weights.tensors.values()]
    )
    for name, t in read_gguf(path).tensors.items():
        assert t.format.name == "F16"
        assert np.array_equal(t.decode(), weights.tensors[name].decode().astype(np.float16).astype(np.float32)), name


# ---- C11: all or nothing -------------------------------------------------------------------------------------

OLD = b"the older, good file"


@pytest.fixture(params=["fresh", "over an older file"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A target whose folder must hold, after a failure, exactly what it held before."""
    path = tmp_path / "m.gguf"
    if request.param != "fresh":
        path.write_bytes(OLD)
    yield path
    assert [p.name for p in tmp_path.iterdir()] == ([] if request.param == "fresh" else ["m.gguf"])
    assert not path.exists() or path.read_bytes() == OLD


@pytest.fixture(params=["nameless", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to the temporary file: without a name, as on Linux, and with one, as elsewhere."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def tiny(cases: Path, path: Path) -> None:
    weights = read_gguf(cases / "gguf/tiny_q1.gguf")
    write_gguf(path, weights.metadata, weights.tensors.values())


def failing(after: int, error: BaseException, real: Callable[..., object]) -> Callable[..., object]:
    left = [after]

    def call(*args: object, **named: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return real(*args, **named)

    return call


@pytest.mark.row("C11")
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "^C"]
)
def test_any_write_fails(
    cases: Path, target: Path, way: None, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    with monkeypatch.context() as patch:
        real = os.write
        patch.setattr(os, "write", lambda *a: calls.append(0) or real(*a))
        tiny(cases, target.parent / "counted")
        (target.parent / "counted").unlink()
    assert len(calls) > 20
    for k in range(len(calls)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(k, error, os.write))
            if isinstance(error, OSError):
                with pytest.raises(BadFile, match=r"m\.gguf: could not be written: No space"):
                    tiny(cases, target)
            else:
                with pytest.raises(KeyboardInterrupt):
                    tiny(cases, target)


@pytest.mark.row("C11")
@pytest.mark.parametrize("call", ["fsync", "replace", "close"])
def test_the_last_steps_fail(cases: Path, target: Path, way: None, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(os, call)

    def fail(*args: object) -> None:
        if call == "close":
            real(*args)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        source = read_gguf(cases / "gguf/tiny_q1.gguf")
        patch.setattr(os, call, fail)
        with pytest.raises(BadFile, match=r"m\.gguf: could not be written: Input/output error"):
            write_gguf(target, source.metadata, source.tensors.values())


@pytest.mark.row("C11")
def test_free_space_is_checked_first(cases: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(target.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=71_967))
    monkeypatch.setattr(os, "write", failing(0, AssertionError("written before the check"), os.write))
    with pytest.raises(BadFile, match=r"m\.gguf: needs 71968 bytes and 71967 are free"):
        tiny(cases, target)


@pytest.mark.row("C11")
def test_a_limit_on_file_size(cases: Path, target: Path, way: None) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(BadFile, match=r"m\.gguf: could not be written: File too large"):
            tiny(cases, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.row("C11")
def test_where_no_file_can_be(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    for path, named in ((tmp_path / "folder", "is a folder"), (tmp_path / "no" / "m.gguf", "does not exist")):
        with pytest.raises(BadFile, match=named):
            tiny(cases, path)
    with pytest.raises(BadFile, match="no file name"):
        tiny(cases, Path("a\0b"))
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    real = os.open

    def read_only(path: object, flags: int, *rest: object, **named: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(BadFile, match=r"m\.gguf: could not be written: Permission denied"):
        tiny(cases, tmp_path / "folder" / "m.gguf")
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.row("C11")
@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="nameless files are Linux's")
def test_killed_while_writing(tmp_path: Path) -> None:
    """A killed process cannot clean up; a file without a name needs no cleaning."""
    (tmp_path / "m.gguf").write_bytes(OLD)
    code = (
        "import itertools, sys, time\n"
        "from shohin.formats import NewTensor, write_gguf\n"
        "from shohin.formats.blocks import by_name\n"
        "def slow():\n"
        "    print('begun', flush=True)\n"
        "    for _ in range(1000):\n"
        "        yield bytes(4096)\n"
        "        time.sleep(0.01)\n"
        "write_gguf(sys.argv[1], {}, [NewTensor('a', (1024000,), by_name('F32'), slow)])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "m.gguf")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    time.sleep(0.1)
    child.kill()
    child.wait()
    child.stdout.close()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"m.gguf": OLD}


def test_a_link_at_the_target_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.gguf").write_bytes(OLD)
    (tmp_path / "link.gguf").symlink_to("real.gguf")
    write_gguf(tmp_path / "link.gguf", {}, [one()])
    assert (tmp_path / "link.gguf").is_symlink()
    assert read_gguf(tmp_path / "real.gguf").tensors.keys() == {"a"}


def test_a_source_that_fails_is_not_hidden(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(4)
        raise ShohinError("the source is gone")

    with pytest.raises(ShohinError, match="the source is gone"):
        write_gguf(tmp_path / "m.gguf", {}, [NewTensor("a", (8,), F32, broken)])
    assert not list(tmp_path.iterdir())
