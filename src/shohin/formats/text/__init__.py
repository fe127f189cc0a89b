"""Text: tokenizer, chat templates and streaming decoder."""

from shohin.formats.text.budget import TemplateLimits
from shohin.formats.text.from_gguf import tokenizer_from_metadata
from shohin.formats.text.from_json import tokenizer_from_json
from shohin.formats.text.stream import StreamDecoder
from shohin.formats.text.template import ChatTemplate
from shohin.formats.text.tokenizer import SpecialIds, Tokenizer
from shohin.formats.text.vocabulary import TokenKind, Vocabulary

__all__ = [
    "ChatTemplate",
    "SpecialIds",
    "StreamDecoder",
    "TemplateLimits",
    "TokenKind",
    "Tokenizer",
    "Vocabulary",
    "tokenizer_from_json",
    "tokenizer_from_metadata",
]
