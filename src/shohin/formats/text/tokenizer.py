"""Text to ids and back, on the ``tokenizers`` library."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tokenizers

from shohin.errors import BadFile, BadRequest
from shohin.formats.text.chat import ChatEncoder
from shohin.formats.text.markers import Markers
from shohin.formats.text.pretokenizers import Rules
from shohin.formats.text.stream import StreamDecoder
from shohin.formats.text.vocabulary import TokenKind, Vocabulary, byte_alphabet

# Pieces that end a turn or a text in published models; each counts only where the file marks it as a control token.
END_PIECES = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
)


@dataclass(frozen=True)
class SpecialIds:
    """What a file says beside the vocabulary. eos: ids it names as ends. add_bos None: the rules' default.

    templates: chat templates by name; the main one is ``default``.
    """

    bos: int | None = None
    eos: frozenset[int] = frozenset()
    pad: int | None = None
    unknown: int | None = None
    add_bos: bool | None = None
    templates: Mapping[str, str] = field(default_factory=dict)


class Tokenizer:
    """Byte-level BPE with control tokens kept apart from text.

    Which ids text can give: ``encode(text)`` never gives a control id; user-defined markers such as ``<think>`` are one
    id each, always. ``encode(text, special=True)`` reads control tokens in the text too: for raw completion prompts.
    Objects are immutable and may be shared between threads.
    """

    def __init__(self, vocabulary: Vocabulary, rules: Rules, special: SpecialIds) -> None:
        """BadFile where an id of ``special`` lies outside the vocabulary or a start token is asked for and missing."""
        self._vocabulary = vocabulary
        self._special = special
        self._check_ids()
        self.control_ids: frozenset[int] = vocabulary.of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN)
        self.bos_id: int | None = special.bos
        self.add_bos: bool = rules.add_bos if special.add_bos is None else special.add_bos
        if self.add_bos and self.bos_id is None:
            raise BadFile(
                f"{vocabulary.source}: a start token is to be added, but tokenizer.ggml.bos_token_id is missing"
            )
        ends = (vocabulary.ids.get(piece) for piece in END_PIECES)
        self.eos_ids: frozenset[int] = special.eos | self.control_ids.intersection(i for i in ends if i is not None)
        mergeable = vocabulary.mergeable()
        self._core = _build(mergeable, vocabulary, rules)
        self._normalizer = rules.normalizer
        self._missing = frozenset(b for c, b in byte_alphabet().items() if c not in mergeable)
        defined = vocabulary.of_kind(TokenKind.USER_DEFINED)
        self._defined = Markers({vocabulary.pieces[i]: i for i in defined})
        self._all = Markers({vocabulary.pieces[i]: i for i in defined | self.control_ids})
        self._chat = ChatEncoder(self._control_pieces(), self._template_names(), special.templates, vocabulary.source)

    @property
    def vocab_size(self) -> int:
        """Number of pieces; ids run from 0 to one less. A model's tensors may have more or fewer rows."""
        return len(self._vocabulary)

    @property
    def chat_template(self) -> str | None:
        """The main chat template's source, None where the file has none."""
        return self._special.templates.get("default")

    @property
    def think_ids(self) -> tuple[int, int] | None:
        """Ids of ``<think>`` and ``</think>``, None unless both are single tokens."""
        opened, closed = self.id_of("<think>"), self.id_of("</think>")
        return None if opened is None or closed is None else (opened, closed)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece spelled as in the file, None where there is none."""
        return self._vocabulary.ids.get(piece)

    def piece(self, token: int) -> str:
        """A token as the file spells it; BadRequest outside the vocabulary."""
        return self._vocabulary.pieces[self._valid(token)]

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, b"" for an unused id; BadRequest outside the vocabulary."""
        return self._vocabulary.bytes_of(self._valid(token))

    def encode(self, text: str, *, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Ids of a text.

        special: control tokens in the text count as such (raw completion prompts); otherwise they are ordinary
        characters. add_bos: put the start token first; None does what the file says. BadRequest where the text is not
        valid Unicode, needs a byte that the vocabulary lacks, or a start token is asked of a model that has none.
        """
        ids = self._start(add_bos)
        for part in (self._all if special else self._defined).split(_valid_text(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._encode_words(part))
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ids; control tokens are left out unless ``skip_special`` is False. Broken UTF-8 becomes U+FFFD."""
        valid = map(self._valid, ids)
        kept = (i for i in valid if not (skip_special and i in self.control_ids))
        return b"".join(map(self._vocabulary.bytes_of, kept)).decode("utf-8", "replace")

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder to push ids into one by one; its chunks join to what ``decode`` gives."""

        def bytes_of(token: int) -> bytes:
            token = self._valid(token)
            return b"" if skip_special and token in self.control_ids else self._vocabulary.bytes_of(token)

        return StreamDecoder(bytes_of)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: object,
    ) -> str:
        """The conversation as the model's own template writes it (``enable_thinking=`` and such pass through).

        BadRequest where the file has no template, or the template refuses the messages; BadFile or UnsupportedFormat
        where the template itself is broken, reaches for what it may not, or does not end.
        """
        return self._chat.render(messages, tools, add_generation_prompt, template_kwargs)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        allow_control_in_content: bool = False,
        **template_kwargs: object,
    ) -> list[int]:
        """Ids of a conversation. Only what the template wrote becomes a control id; everything in messages, tools and
        arguments is text, whatever it looks like. ``allow_control_in_content`` reads the rendered text as a raw prompt.

        The start token is the template's business: none is added here unless the template wrote none and the file
        asks for one. Errors as in ``render_chat`` and ``encode``.
        """
        asked = (messages, tools, add_generation_prompt, template_kwargs)
        self._chat.refuse_unread(*asked)
        ids: list[int] = []
        if allow_control_in_content:
            ids = self.encode(self._chat.render(*asked), special=True, add_bos=False)
        else:
            for span in self._chat.spans(*asked):
                ids.extend([span] if isinstance(span, int) else self.encode(span, add_bos=False))
        return ids if ids[:1] == [self.bos_id] else self._start(None) + ids

    def _start(self, add_bos: bool | None) -> list[int]:
        if not (self.add_bos if add_bos is None else add_bos):
            return []
        if self.bos_id is None:
            raise BadRequest("a start token was asked for, but this model has none", param="add_bos")
        return [self.bos_id]

    def _encode_words(self, text: str) -> list[int]:
        if self._missing:
            self._check_bytes(text)
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        return ids

    def _check_bytes(self, text: str) -> None:
        """A byte without a token would vanish from the prompt without a word."""
        normal = self._normalizer.normalize_str(text) if self._normalizer else text
        for byte in sorted(self._missing.intersection(normal.encode())):
            raise BadRequest(
                f"the text holds the byte 0x{byte:02x}, for which this model's vocabulary has no token; remove it",
                param="prompt",
            )

    def _valid(self, token: int) -> int:
        try:
            index = operator.index(token)
        except TypeError:
            raise BadRequest(f"token id {token!r} is not a whole number") from None
        if not 0 <= index < len(self._vocabulary):
            raise BadRequest(f"token id {index} is outside the vocabulary of {len(self._vocabulary)}")
        return index

    def _check_ids(self) -> None:
        named = {"bos": self._special.bos, "padding": self._special.pad, "unknown": self._special.unknown}
        listed = [*named.items(), *(("end", i) for i in sorted(self._special.eos))]
        for name, token in listed:
            if token is not None and not 0 <= token < len(self._vocabulary):
                raise BadFile(
                    f"{self._vocabulary.source}: the {name} token id is {token}, "
                    f"outside the vocabulary of {len(self._vocabulary)}"
                )

    def _control_pieces(self) -> dict[str, int]:
        """Control pieces by text, for the chat encoder."""
        return {self._vocabulary.pieces[i]: i for i in self.control_ids}

    def _template_names(self) -> dict[str, str]:
        """bos_token and its like: what templates may write by name."""
        roles = {"bos_token": self._special.bos, "pad_token": self._special.pad, "unk_token": self._special.unknown}
        ends = sorted(self._special.eos)
        named = {name: self._vocabulary.pieces[i] for name, i in roles.items() if i is not None}
        return named | ({"eos_token": self._vocabulary.pieces[ends[0]]} if ends else {})


def _build(mergeable: dict[str, int], vocabulary: Vocabulary, rules: Rules) -> tokenizers.Tokenizer:
    try:
        model = tokenizers.models.BPE(
            vocab=mergeable, merges=list(vocabulary.merges), ignore_merges=rules.ignore_merges
        )
    except Exception as error:  # the library raises bare Exceptions
        raise BadFile(f"{vocabulary.source}: the vocabulary and merges don't fit together: {error}") from error
    core = tokenizers.Tokenizer(model)
    if rules.normalizer is not None:
        core.normalizer = rules.normalizer
    core.pre_tokenizer = rules.splitter
    return core


def _valid_text(text: str) -> str:
    if not isinstance(text, str):
        raise BadRequest(f"text was expected, {type(text).__name__} was given")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"character {error.start} of the text is half a surrogate pair ({text[error.start]!r}), not a character"
        ) from None
    return text
