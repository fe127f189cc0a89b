"""A tokenizer from the ``tokenizer.*`` keys of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shohin.errors import BadFile, UnsupportedFormat
from shohin.formats.text.pretokenizers import rules_for
from shohin.formats.text.tokenizer import SpecialIds, Tokenizer
from shohin.formats.text.vocabulary import Vocabulary

_GGML = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_from_metadata(metadata: Mapping[str, object], source: str) -> Tokenizer:
    """Build from GGUF metadata; ``source`` names the file in messages.

    BadFile names the key and the values of what is missing, malformed or contradicts itself; UnsupportedFormat names a
    ``tokenizer.ggml.model`` other than ``gpt2`` (byte-level BPE) or a ``tokenizer.ggml.pre`` that is not known.
    """
    keys = _Keys(metadata, source)
    model = keys.text("model")
    if model != "gpt2":
        raise UnsupportedFormat(
            f"{source}: tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) is supported"
        )
    rules = rules_for(keys.text("pre"), source)
    vocabulary = Vocabulary(keys.strings("tokens"), keys.kinds(), keys.merges(), source)
    ends = (keys.token(name) for name in _END_KEYS)
    special = SpecialIds(
        bos=keys.token("bos_token_id"),
        eos=frozenset(i for i in ends if i is not None),
        pad=keys.token("padding_token_id"),
        unknown=keys.token("unknown_token_id"),
        add_bos=keys.flag("add_bos_token"),
        templates=keys.templates(),
    )
    return Tokenizer(vocabulary, rules, special)


class _Keys:
    """Typed reading of ``tokenizer.*``; every refusal names the key."""

    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self._metadata = metadata
        self._source = source

    def text(self, name: str) -> str:
        value = self._needed(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def strings(self, name: str) -> list[str]:
        return [v if isinstance(v, str) else self._bad_item(name, i, v, "text") for i, v in self._items(name)]

    def kinds(self) -> list[int]:
        return [
            v if type(v) is int else self._bad_item("token_type", i, v, "a whole number")
            for i, v in self._items("token_type")
        ]

    def merges(self) -> list[tuple[str, str]]:
        pairs = []
        for index, merge in enumerate(self.strings("merges")):
            left, gap, right = merge.partition(" ")
            if not (left and gap and right) or " " in right:
                self._bad_item("merges", index, merge, "two pieces with one space between them")
            pairs.append((left, right))
        return pairs

    def token(self, name: str) -> int | None:
        value = self._metadata.get(_GGML + name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(name, value, "a token id")
        return value

    def flag(self, name: str) -> bool | None:
        value = self._metadata.get(_GGML + name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def templates(self) -> dict[str, str]:
        """``tokenizer.chat_template`` as ``default`` and ``tokenizer.chat_template.NAME`` as NAME."""
        found = {}
        for key, value in self._metadata.items():
            name = key.removeprefix("tokenizer.chat_template")
            if name == key or (name and not name.startswith(".")):
                continue
            if not isinstance(value, str):
                raise BadFile(f"{self._source}: {key} is {_short(value)}; text was expected")
            found[name[1:] or "default"] = value
        return found

    def _items(self, name: str) -> Iterable[tuple[int, Any]]:
        value: Any = self._needed(name)
        if hasattr(value, "tolist"):  # a NumPy array: its elements are no Python ints
            value = value.tolist()
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise self._wrong(name, value, "a list")
        return enumerate(value)

    def _needed(self, name: str) -> object:
        value = self._metadata.get(_GGML + name)
        if value is None:
            raise BadFile(f"{self._source}: {_GGML}{name} is missing; without it text can't be turned into token ids")
        return value

    def _bad_item(self, name: str, index: int, value: object, expected: str) -> Any:
        raise BadFile(f"{self._source}: {_GGML}{name}[{index}] is {_short(value)}; {expected} was expected")

    def _wrong(self, name: str, value: object, expected: str) -> BadFile:
        return BadFile(f"{self._source}: {_GGML}{name} is {_short(value)}; {expected} was expected")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
