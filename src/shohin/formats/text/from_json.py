"""A tokenizer from a Hugging Face ``tokenizer.json`` and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import normalizers, pre_tokenizers

from shohin.errors import BadFile, UnsupportedFormat
from shohin.formats.text.pretokenizers import KNOWN_PATTERNS, Rules, cut
from shohin.formats.text.tokenizer import SpecialIds, Tokenizer
from shohin.formats.text.vocabulary import TokenKind, Vocabulary

_MOST_BYTES = 256 << 20
_MOST_TEMPLATE = 1 << 20
_NORMAL_FORMS = {"NFC": normalizers.NFC, "NFD": normalizers.NFD, "NFKC": normalizers.NFKC, "NFKD": normalizers.NFKD}


def tokenizer_from_json(path: str | Path) -> Tokenizer:
    """Build from ``tokenizer.json``, or from the folder that holds one.

    ``tokenizer_config.json``, ``chat_template.jinja`` and ``generation_config.json`` beside it are read where they
    exist, for the template, the start token and the ends. BadFile where a file is missing, damaged or contradicts
    itself; UnsupportedFormat for anything but byte-level BPE with known word patterns.
    """
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    body = _read(path)
    reader = _Reader(body, str(path))
    vocabulary = reader.vocabulary()
    config = _Config(path.parent, vocabulary)
    return Tokenizer(vocabulary, reader.rules(), config.special(reader.first_token()))


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(_content(path, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadFile(f"{path}: a JSON object was expected, {type(body).__name__} was found")
    return body


def _content(path: Path, most: int) -> bytes:
    """A regular file's bytes: a pipe would be waited for, a device never ends."""
    try:
        if not path.is_file():
            raise BadFile(f"{path}: {'is no regular file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most:
        raise BadFile(f"{path}: more than the {most} bytes that such a file may have")
    return content


class _Reader:
    """The parts of one tokenizer.json."""

    def __init__(self, body: dict[str, Any], source: str) -> None:
        self._body = body
        self._source = source
        model = body.get("model")
        if not isinstance(model, dict):
            raise BadFile(f"{source}: model is {_short(model)}; an object was expected")
        if model.get("type", "BPE") != "BPE":
            raise UnsupportedFormat(f"{source}: model.type is {model['type']!r}; only byte-level BPE is supported")
        for name in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "unk_token", "fuse_unk"):
            if model.get(name):
                raise UnsupportedFormat(f"{source}: model.{name} is {_short(model[name])}; byte-level BPE has none")
        self._model = model

    def vocabulary(self) -> Vocabulary:
        """Model and added tokens as one table; ids that neither names are unused."""
        entries: dict[int, tuple[str, int]] = {}
        for piece, token in self._vocab():
            if entries.setdefault(token, (piece, TokenKind.NORMAL))[0] != piece:
                raise BadFile(f"{self._source}: id {token} is both {entries[token][0]!r} and {piece!r}")
        for piece, token, special in self._added():
            if entries.get(token, (piece,))[0] != piece:
                raise BadFile(f"{self._source}: id {token} is both {entries[token][0]!r} and {piece!r}")
            entries[token] = (piece, TokenKind.CONTROL if special else TokenKind.USER_DEFINED)
        size = max(entries, default=-1) + 1
        if size > 4 * len(entries) + 1024:
            raise BadFile(f"{self._source}: ids go up to {size - 1}, but only {len(entries)} tokens are listed")
        rows = [entries.get(i, ("", TokenKind.UNUSED)) for i in range(size)]
        return Vocabulary([r[0] for r in rows], [int(r[1]) for r in rows], self._merges(), self._source)

    def rules(self) -> Rules:
        """Normal form and word cuts; UnsupportedFormat names what is not known."""
        if not any(part.get("type") == "ByteLevel" for part in self._parts("decoder", "decoders")):
            raise UnsupportedFormat(
                f"{self._source}: decoder is {_short(self._body.get('decoder'))}; not byte-level BPE"
            )
        steps = [self._step(part) for part in self._parts("pre_tokenizer", "pretokenizers")]
        if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
            raise UnsupportedFormat(f"{self._source}: pre_tokenizer has no ByteLevel step; not byte-level BPE")
        forms = [self._form(part) for part in self._parts("normalizer", "normalizers")]
        return Rules(
            normalizers.Sequence(forms) if forms else None,
            pre_tokenizers.Sequence(steps),
            ignore_merges=self._model.get("ignore_merges") is True,
        )

    def first_token(self) -> int | None:
        """The token that the post-processor puts before a text, None for none."""
        for part in self._parts("post_processor", "processors"):
            first = next(iter(_list(part.get("single"))), None)
            if part.get("type") == "TemplateProcessing" and isinstance(first, dict) and "SpecialToken" in first:
                name = first["SpecialToken"].get("id") if isinstance(first["SpecialToken"], dict) else None
                for piece, token, _ in self._added():
                    if piece == name:
                        return token
                raise BadFile(f"{self._source}: post_processor puts {_short(name)} first, which is no added token")
        return None

    def _vocab(self) -> Iterator[tuple[str, int]]:
        vocab = self._model.get("vocab")
        if not isinstance(vocab, dict):
            raise BadFile(f"{self._source}: model.vocab is {_short(vocab)}; an object was expected")
        for piece, token in vocab.items():
            yield piece, self._id(token, piece)

    def _added(self) -> Iterator[tuple[str, int, bool]]:
        added = self._body.get("added_tokens")
        if added is not None and not isinstance(added, list):
            raise BadFile(f"{self._source}: added_tokens is {_short(added)}; a list was expected")
        for row in added or ():
            piece = row.get("content") if isinstance(row, dict) else None
            if not isinstance(piece, str) or not piece:
                raise BadFile(f"{self._source}: added_tokens holds {_short(row)}; content must be text")
            for flag in ("lstrip", "rstrip", "single_word"):
                if row.get(flag):
                    raise UnsupportedFormat(f"{self._source}: added token {piece!r} has {flag}; that is not supported")
            if row.get("normalized") and not piece.isascii() and self._body.get("normalizer"):
                raise UnsupportedFormat(
                    f"{self._source}: added token {piece!r} is matched after normalising; not supported"
                )
            yield piece, self._id(row.get("id"), piece), row.get("special") is True

    def _id(self, token: object, piece: str) -> int:
        if type(token) is not int or not 0 <= token < 1 << 31:
            raise BadFile(f"{self._source}: the id of {piece!r} is {_short(token)}")
        return token

    def _merges(self) -> list[tuple[str, str]]:
        pairs = []
        merges = self._model.get("merges")
        if not isinstance(merges, list):
            raise BadFile(f"{self._source}: model.merges is {_short(merges)}; a list was expected")
        for index, merge in enumerate(merges):
            parts = merge.split(" ") if isinstance(merge, str) else merge
            if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
                raise BadFile(f"{self._source}: model.merges[{index}] is {_short(merge)}; two pieces were expected")
            pairs.append((parts[0], parts[1]))
        return pairs

    def _parts(self, key: str, inner: str) -> list[dict[str, Any]]:
        """A component, or the components of a Sequence, as a flat list."""
        part = self._body.get(key)
        parts = _list(part.get(inner)) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
        if any(p is not None and not isinstance(p, dict) for p in parts):
            raise BadFile(f"{self._source}: {key} is {_short(part)}; objects were expected")
        return [p for p in parts if p is not None]

    def _step(self, part: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
        kind = part.get("type")
        if kind == "ByteLevel" and part.get("add_prefix_space") is False:
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=part.get("use_regex", True) is True)
        if kind == "Digits":
            return pre_tokenizers.Digits(individual_digits=part.get("individual_digits") is True)
        pattern = part.get("pattern")
        pattern = pattern.get("Regex") if isinstance(pattern, dict) else None
        if (
            kind == "Split"
            and pattern in KNOWN_PATTERNS
            and part.get("behavior") == "Isolated"
            and not part.get("invert")
        ):
            return cut(pattern)
        raise UnsupportedFormat(
            f"{self._source}: pre_tokenizer step {_short(part)} is not known; token ids would be guesses"
        )

    def _form(self, part: dict[str, Any]) -> normalizers.Normalizer:
        if part.get("type") not in _NORMAL_FORMS:
            raise UnsupportedFormat(f"{self._source}: normalizer {_short(part)} is not known")
        return _NORMAL_FORMS[part["type"]]()


class _Config:
    """What the files beside tokenizer.json add."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        self._folder = folder
        self._vocabulary = vocabulary
        self._config = self._optional("tokenizer_config.json")
        self._generation = self._optional("generation_config.json")

    def special(self, first: int | None) -> SpecialIds:
        """``first``: the token that tokenizer.json itself puts before a text."""
        stated = self._config.get("add_bos_token")
        bos = self._named("bos_token")
        eos = self._named("eos_token")
        return SpecialIds(
            bos=first if bos is None else bos,
            eos=frozenset(self._generation_ends()) | (frozenset() if eos is None else {eos}),
            pad=self._named("pad_token"),
            unknown=self._named("unk_token"),
            add_bos=stated if isinstance(stated, bool) else first is not None,
            templates=self._templates(),
        )

    def _optional(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return _read(path) if path.exists() else {}

    def _named(self, key: str) -> int | None:
        value = self._config.get(key)
        piece = value.get("content") if isinstance(value, dict) else value
        if piece is None:
            return None
        if not isinstance(piece, str) or piece not in self._vocabulary.ids:
            raise BadFile(f"{self._folder / 'tokenizer_config.json'}: {key} is {_short(value)}, which is no token")
        return self._vocabulary.ids[piece]

    def _generation_ends(self) -> list[int]:
        value = self._generation.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int for i in ids):
            raise BadFile(
                f"{self._folder / 'generation_config.json'}: eos_token_id is {_short(value)}; ids were expected"
            )
        return ids

    def _templates(self) -> dict[str, str]:
        """A template file of its own comes before the one in the configuration."""
        path = self._folder / "chat_template.jinja"
        if path.exists():
            try:
                return {"default": _content(path, _MOST_TEMPLATE).decode()}
            except UnicodeDecodeError as error:
                raise BadFile(f"{path}: can't be read: {error}") from error
        value = self._config.get("chat_template")
        rows = [{"name": "default", "template": value}] if isinstance(value, str) else value
        try:
            found = {row["name"]: row["template"] for row in rows or ()}
        except (TypeError, KeyError):
            found = {"": None}
        if not all(isinstance(x, str) for pair in found.items() for x in pair):
            raise BadFile(
                f"{self._folder / 'tokenizer_config.json'}: chat_template is {_short(value)}; text was expected"
            )
        return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
