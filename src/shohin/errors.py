"""The errors that shohin raises.

Every message says what was wrong, where (file, field, tensor, operation), which values were seen, and what to do.
The neutral classes of the engine contract map onto these: Shape -> BadShape, State -> BadState,
Device -> DeviceFailed, Allocation -> OutOfMemory (or BadShape for a request of zero bytes).
"""

from __future__ import annotations

__all__ = [
    "BadFile",
    "BadRequest",
    "BadShape",
    "BadState",
    "Cancelled",
    "ContextFull",
    "DeviceFailed",
    "KernelBuild",
    "NoDevice",
    "OutOfMemory",
    "ShohinError",
    "UnsupportedFormat",
]


class ShohinError(Exception):
    """Base of every error that shohin raises on purpose."""


class BadFile(ShohinError):
    """A file is damaged, incomplete or contradicts itself."""


class UnsupportedFormat(ShohinError):
    """A file is sound, but holds something shohin does not run: a type, an architecture, a tokenizer, a rotation."""


class BadShape(ShohinError):
    """An operand's length, shape, dtype, format or count does not fit the operation."""


class BadState(ShohinError):
    """A call came at the wrong time: not prepared, already closed, dimensions changed under a live sequence."""


class NoDevice(ShohinError):
    """The device asked for does not exist on this machine."""


class DeviceFailed(ShohinError):
    """The device reported a failure while it ran a submission."""


class KernelBuild(ShohinError):
    """A kernel is missing from a device or failed to build."""


class OutOfMemory(ShohinError):
    """A request needs more memory than there is; the message gives the size and what would fit."""


class Cancelled(ShohinError):
    """A submission was cancelled by its caller before it finished."""


class BadRequest(ShohinError):
    """A caller's parameter is out of range or of the wrong type.

    ``param`` names the field, or is None where no single field is to blame; ``code`` is a stable machine-readable word.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__


class ContextFull(BadRequest):
    """The prompt does not fit the context; nothing is ever cut in silence."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the context holds {context}, of which one is needed for the "
            f"answer; shorten the prompt or raise --ctx-size (context=)",
            param="messages",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.context = context

    def __reduce__(self) -> tuple[type[ContextFull], tuple[int, int]]:
        return type(self), (self.prompt_tokens, self.context)
