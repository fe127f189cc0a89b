"""A byte-level BPE vocabulary as a file states it, checked once before anything is built from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache

from shohin.errors import BadFile
from shohin.formats.text.markers import LONGEST


class TokenKind(IntEnum):
    """What a token is for; the numbers are those of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Kinds whose pieces are cut out of text before it is split into words.
_WHOLE = frozenset({int(TokenKind.UNKNOWN), int(TokenKind.CONTROL), int(TokenKind.USER_DEFINED)})


@cache
def byte_alphabet() -> Mapping[str, int]:
    """GPT-2's printable stand-in for each byte, as character -> byte.

    Bytes that print keep their Latin-1 character; the other 68 follow in order from U+0100.
    Source: ``bytes_to_unicode`` of the GPT-2 encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """pieces: text of each id as the file spells it. kinds: one TokenKind number a piece. merges: pairs, best first.

    source names the file in messages. Construction checks everything: BadFile names the key, the index and the values.
    """

    pieces: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[tuple[str, str]]
    source: str
    ids: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_pieces()
        object.__setattr__(self, "ids", self._index())
        self._check_merges()

    def __len__(self) -> int:
        return len(self.pieces)

    def of_kind(self, *kinds: TokenKind) -> frozenset[int]:
        """The ids of these kinds, empty pieces left out: nothing can spell them."""
        wanted = {int(k) for k in kinds}
        return frozenset(i for i, k in enumerate(self.kinds) if k in wanted and self.pieces[i])

    def mergeable(self) -> dict[str, int]:
        """What plain text may become: every normal, byte and user-defined piece.

        Control pieces stay out, so that text can never turn into one, except where the file's own merges are built
        through them (a pad token promoted from an ordinary word): there the merges win and the piece is a word.
        """
        text = (TokenKind.NORMAL, TokenKind.BYTE, TokenKind.USER_DEFINED)
        found = {self.pieces[i]: i for i in self.of_kind(*text)}
        if len(found) < len(self.pieces):
            for left, right in self.merges:
                for piece in (left, right, left + right):
                    if piece not in found:
                        found[piece] = self.ids[piece]
        return found

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; an unused id stands for none."""
        piece, kind = self.pieces[token], self.kinds[token]
        if kind == TokenKind.UNUSED:
            return b""
        if kind in (TokenKind.NORMAL, TokenKind.BYTE):
            alphabet = byte_alphabet()
            try:
                return bytes([alphabet[c] for c in piece])
            except KeyError:
                pass  # not spelled in the byte alphabet: the characters themselves
        return piece.encode()

    def _check_pieces(self) -> None:
        if not self.pieces:
            raise BadFile(f"{self.source}: the vocabulary is empty")
        if len(self.kinds) != len(self.pieces):
            raise BadFile(
                f"{self.source}: tokenizer.ggml.token_type has {len(self.kinds)} entries for "
                f"{len(self.pieces)} tokens; the two lists must be of one length"
            )
        for index, piece in enumerate(self.pieces):
            if not isinstance(piece, str) or not _encodable(piece):
                raise BadFile(f"{self.source}: token {index} is {_short(piece)}, which is not text")
        known = {int(k) for k in TokenKind}
        for index, kind in enumerate(self.kinds):
            if kind not in known:
                raise BadFile(f"{self.source}: token_type of token {index} is {kind!r}; 1 to 6 are known")
            if kind in _WHOLE and len(self.pieces[index]) > LONGEST:
                raise BadFile(
                    f"{self.source}: token {index} (token_type {kind}) has {len(self.pieces[index])} characters; a "
                    f"token that is looked for whole may have {LONGEST}"
                )

    def _index(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for index, piece in enumerate(self.pieces):
            if piece and ids.setdefault(piece, index) != index:
                raise BadFile(f"{self.source}: tokens {ids[piece]} and {index} are both {_short(piece)}")
        return ids

    def _check_merges(self) -> None:
        for rank, pair in enumerate(self.merges):
            for piece in (*pair, "".join(pair)):
                if piece not in self.ids:
                    raise BadFile(
                        f"{self.source}: merge {rank}, {_short(pair)}, needs the token {_short(piece)}, "
                        f"which is missing"
                    )


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
