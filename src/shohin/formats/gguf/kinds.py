"""The value kinds of GGUF metadata, spelled as users of the writer spell them: ``u32``, ``str``, ``[i32]`` ...

Source: ggml-org/ggml, docs/gguf.md. Arrays of arrays exist in that text, but no known file has them and ggml refuses
them, so they are no kind here.
"""

from __future__ import annotations

from dataclasses import dataclass

ARRAY_ID = 9
STRING_ID = 8
ARRAY_OF_BOOL = "[bool]"


@dataclass(frozen=True)
class Scalar:
    """name as users spell it; id in the file; code for ``struct``; low and high: the integers it holds, if it does."""

    name: str
    id: int
    code: str
    low: int = 0
    high: int = 0

    @property
    def dtype(self) -> str:
        """The numpy dtype of an array of these; booleans are read as bytes."""
        return "u1" if self.name == "bool" else f"<{self.name[0]}{int(self.name[1:]) // 8}"

    @property
    def size(self) -> int:
        """Bytes a value takes."""
        return 1 if self.name == "bool" else int(self.name[1:]) // 8

    @property
    def integer(self) -> bool:
        """True for the eight integer kinds."""
        return self.high > 0


def _integers() -> list[Scalar]:
    ids = {8: (0, 1, "Bb"), 16: (2, 3, "Hh"), 32: (4, 5, "Ii"), 64: (10, 11, "Qq")}
    unsigned = [Scalar(f"u{bits}", ids[bits][0], ids[bits][2][0], 0, 2**bits - 1) for bits in ids]
    signed = [
        Scalar(f"i{bits}", ids[bits][1], ids[bits][2][1], -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in ids
    ]
    return unsigned + signed


SCALARS: dict[str, Scalar] = {
    s.name: s for s in [*_integers(), Scalar("f32", 6, "f"), Scalar("f64", 12, "d"), Scalar("bool", 7, "B")]
}
SCALAR_BY_ID: dict[int, Scalar] = {s.id: s for s in SCALARS.values()}
KINDS: frozenset[str] = frozenset([*SCALARS, "str", "[str]", *(f"[{name}]" for name in SCALARS)])


def item_of(kind: str) -> str | None:
    """The item kind of an array kind; None for a scalar kind."""
    return kind[1:-1] if kind.startswith("[") else None
