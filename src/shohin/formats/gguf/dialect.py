"""Which of three layouts stands behind tensor type 42, decided from the whole file and never guessed.

The layouts: upstream ``Q2_0`` (64 weights, 18 bytes), PrismML's older ``Q2_0_G128`` (128 weights, 34 bytes, scale
first) and OxiBonsai's ``TQ2_0_G128`` (the same size, scale last). A file holds one of them. Sizes speak first: each
tensor must take exactly the room up to the next offset or the end of the file. Where sizes fit several layouts the
content decides: a layout survives only if every sampled block has a finite scale that is not negative, no code 11 and,
under a scale of 0, only zero codes. What is still open is decided by the marks of OxiBonsai's exporter or refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadFile, BadRequest
from shohin.formats.blocks import DIALECTS_OF_42, BlockFormat
from shohin.formats.gguf.header import Entry, Header, padded

AMBIGUOUS_ID = 42
SCALE_LAST = "TQ2_0_G128"
ENOUGH_BLOCKS = 256
ENOUGH_TENSORS = 64


@dataclass(frozen=True, eq=False)
class Part:
    """One mapped file of a set: its path, its header and all its tensor data as read-only bytes.

    size: bytes of the whole file.
    """

    path: Path
    header: Header
    data: NDArray[np.uint8]
    size: int


@dataclass(frozen=True)
class _Candidate:
    """A tensor of type 42, the room it has in its part, and whether that room ends with the file."""

    part: Part
    entry: Entry
    room: int
    last: bool

    def sizes(self) -> dict[str, int]:
        """Bytes by layout, for the layouts whose blocks fill the rows."""
        return {f.name: f.nbytes(self.entry.elements) for f in DIALECTS_OF_42 if self.entry.dims[0] % f.block == 0}

    def fits(self) -> frozenset[str]:
        """The layouts that take exactly the room."""
        alignment = self.part.header.alignment
        return frozenset(
            name
            for name, size in self.sizes().items()
            if self.room == padded(size, alignment) or (self.last and self.room == size)
        )


def dialect_named(name: str) -> BlockFormat:
    """The layout for an explicit ``dialect=``; BadRequest lists the three names."""
    for layout in DIALECTS_OF_42:
        if layout.name.lower() == name.lower():
            return layout
    names = ", ".join(layout.name.lower() for layout in DIALECTS_OF_42)
    raise BadRequest(f"dialect {name!r} is unknown; tensor type 42 can be read as {names}", param="dialect")


def resolve(parts: Sequence[Part], asked: str | None) -> tuple[BlockFormat | None, str | None]:
    """The layout of type 42 in this set of files and a sentence that says why; (None, ...) where no tensor has it."""
    forced = None if asked is None else dialect_named(asked)
    candidates = [c for part in parts for c in _candidates(part)]
    if not candidates:
        return None, None if forced is None else f"dialect {forced.name} was asked for; no tensor has type 42"
    if forced is not None:
        return forced, f"type 42 is read as {forced.name} ({forced.block} weights a block): asked for"
    sized = _by_size(candidates)
    names, reason = sized, f"the offsets of {len(candidates)} tensors"
    if len(sized) > 1:
        names, blocks = _by_content(candidates, sized)
        reason = f"the sizes of {len(candidates)} tensors and the content of {blocks} blocks"
    names, hinted = _with_hint(parts, names)
    layout = next(f for f in DIALECTS_OF_42 if f.name in names)
    because = f"{reason}{' and the marks of its exporter' if hinted else ''}"
    return layout, f"type 42 is read as {layout.name} ({layout.block} weights a block): decided by {because}"


def _candidates(part: Part) -> list[_Candidate]:
    ordered = sorted(part.header.entries, key=lambda e: e.offset)
    if not ordered:
        return []
    ends = [e.offset for e in ordered[1:]] + [len(part.data)]
    return [
        _Candidate(part, entry, end - entry.offset, entry is ordered[-1])
        for entry, end in zip(ordered, ends, strict=True)
        if entry.type_id == AMBIGUOUS_ID
    ]


def _by_size(candidates: Sequence[_Candidate]) -> frozenset[str]:
    possible = frozenset(f.name for f in DIALECTS_OF_42)
    for c in candidates:
        fits = c.fits()
        if not fits:
            sizes = ", ".join(f"{name} takes {size}" for name, size in c.sizes().items()) or "no layout has such rows"
            names = ", ".join(f.name for f in DIALECTS_OF_42)
            raise BadFile(
                f"{c.part.path}: tensor {c.entry.name!r} has type 42 ({names}), rows of {c.entry.dims[0]} weights and "
                f"{c.room} bytes up to the next tensor or the end of the file; {sizes}; the file is cut or damaged"
            )
        if not possible & fits:
            raise BadFile(
                f"{c.part.path}: tensor {c.entry.name!r} of type 42 has the size of {' or '.join(sorted(fits))} and "
                f"the tensors before it that of {' or '.join(sorted(possible))}; a file holds one layout"
            )
        possible &= fits
    return possible


def _by_content(candidates: Sequence[_Candidate], names: frozenset[str]) -> tuple[frozenset[str], int]:
    survivors, fewest = set(), 0
    for layout in DIALECTS_OF_42:
        if layout.name in names:
            blocks = _sample(candidates, layout)
            fewest = min(fewest or len(blocks), len(blocks))
            if plausible(blocks, scale_last=layout.name == SCALE_LAST):
                survivors.add(layout.name)
    if not survivors:
        raise BadFile(
            f"{candidates[0].part.path}: the tensors of type 42 have the size of {' or '.join(sorted(names))}, and "
            f"among {fewest} sampled blocks each of these meets an impossible scale or the unused code 11; "
            f"the file is damaged, or say which layout it is with dialect="
        )
    return frozenset(survivors), fewest


def _sample(candidates: Sequence[_Candidate], layout: BlockFormat) -> NDArray[np.uint8]:
    """About ENOUGH_BLOCKS blocks [n, block_bytes] spread evenly over up to ENOUGH_TENSORS tensors."""
    step = max(1, len(candidates) / ENOUGH_TENSORS)
    picked = [candidates[int(i * step)] for i in range(min(len(candidates), ENOUGH_TENSORS))]
    # The smallest first, so that what they lack is taken from the larger ones.
    picked.sort(key=lambda c: c.entry.elements)
    found: list[NDArray[np.uint8]] = []
    wanted = ENOUGH_BLOCKS
    for index, c in enumerate(picked):
        size = layout.nbytes(c.entry.elements)
        raw = c.part.data[c.entry.offset : c.entry.offset + size]
        if len(raw) < size:
            raise BadFile(
                f"{c.part.path}: tensor {c.entry.name!r} needs {size} bytes at offset {c.entry.offset} of "
                f"{len(c.part.data)} bytes of tensor data; the file is cut or damaged"
            )
        blocks = layout.blocks(raw)
        share = min(len(blocks), -(-wanted // (len(picked) - index)))
        found.append(blocks[np.arange(share) * len(blocks) // share])
        wanted -= share
    return np.concatenate(found)


def plausible(blocks: NDArray[np.uint8], *, scale_last: bool) -> bool:
    """Whether all of [n, block_bytes] can be blocks of this layout: the test of the module's docstring."""
    codes, scale_bytes = (blocks[:, :-2], blocks[:, -2:]) if scale_last else (blocks[:, 2:], blocks[:, :2])
    scale = np.ascontiguousarray(scale_bytes).view("<f2")[:, 0]
    if not (np.isfinite(scale) & (scale >= 0)).all():
        return False
    if (codes & (codes >> 1) & 0x55).any():
        return False
    return bool((codes[scale == 0] == 0x55).all())


def _with_hint(parts: Sequence[Part], names: frozenset[str]) -> tuple[frozenset[str], bool]:
    source, metadata = parts[0].path, parts[0].header.metadata
    if not scale_last_marked(metadata):
        if len(names) > 1:
            raise BadFile(
                f"{source}: the sizes and the content of the tensors of type 42 fit {' and '.join(sorted(names))}; "
                f"nothing in the file decides, say which it is with dialect="
            )
        return names, False
    if SCALE_LAST not in names:
        raise BadFile(
            f"{source}: the metadata has the marks of an exporter that writes type 42 as {SCALE_LAST}, and the tensors "
            f"are {' or '.join(sorted(names))}; if that is right, say so with dialect="
        )
    return frozenset([SCALE_LAST]), len(names) > 1


def scale_last_marked(metadata: Mapping[str, object]) -> bool:
    """Whether the file says it comes from OxiBonsai, which writes type 42 with the scale last."""
    if metadata.get("general.quantization_version") == SCALE_LAST:
        return True
    return any(k.startswith("llm.") for k in metadata) and not any(k.startswith("qwen3.") for k in metadata)
