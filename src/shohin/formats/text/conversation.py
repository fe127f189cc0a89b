"""What a chat template is given: plain copies of what the caller passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shohin.errors import BadRequest

_DEEPEST = 100
_MOST_BITS = 4096
# Names that a message's reasoning goes by; templates read the first, gpt-oss ones the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain(value: object, where: str, change: Callable[[str], str] = str, depth: int = 0) -> Any:
    """A copy made of None, bool, int, float, str, list and dict only, each string passed through ``change``.

    BadRequest, with ``where`` in its text, for anything else, for text that is not Unicode, and for deep nesting.
    """
    if depth > _DEEPEST:
        raise BadRequest(f"{where}: nested more than {_DEEPEST} deep", param=where)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
        return int(value)
    if isinstance(value, str):
        return change(_unicode(str(value), where))
    if isinstance(value, Mapping):
        return {
            plain(_key(k, where), where, change, depth): plain(v, where, change, depth + 1) for k, v in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain(item, where, change, depth + 1) for item in value]
    raise BadRequest(f"{where}: a {type(value).__name__} can't go into a conversation", param=where)


def messages_for(messages: object, change: Callable[[str], str] = str) -> list[dict[str, Any]]:
    """Copies of the messages as templates expect them: null entries left out, reasoning under its usual names."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise BadRequest("messages must be a list of at least one message", param="messages")
    return [_message(message, f"messages[{i}]", change) for i, message in enumerate(messages)]


def _message(message: object, where: str, change: Callable[[str], str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} is a {type(message).__name__}; an object was expected", param="messages")
    copy = {k: v for k, v in plain(message, where, change).items() if v is not None}
    if not isinstance(copy.get("role"), str):
        raise BadRequest(f"{where}.role is {message.get('role')!r}; text was expected", param="messages")
    reasoning = next((copy[name] for name in _REASONING if name in copy), None)
    return copy if reasoning is None else {"thinking": reasoning, **copy, "reasoning_content": reasoning}


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise BadRequest(f"{where}: the key {key!r} is not text", param=where)
    return key


def _unicode(text: str, where: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"{where}: {text[error.start]!r} at {error.start} is half a surrogate pair, not a character",
                param=where,
            ) from None
    return text
