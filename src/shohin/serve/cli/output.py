"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EBADF
from io import TextIOWrapper
from typing import Any, TextIO

from shohin.errors import ShohinError

Progress = Callable[[str, int, int], None]

# More than any context holds; what never ends must not fill the memory first.
LONGEST_INPUT = 64 << 20
# C0 without tab and line feed, DEL and C1; marks, embeddings, overrides and isolates of direction; line separators.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of standard output, in ASCII where the stream can't carry its text."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        line = json.dumps(value, allow_nan=False)
    print(line, flush=True)


def note(text: str) -> None:
    """A remark for the person at the terminal, lost where there is none. What it quotes can't steer the terminal."""
    # A closed standard error is None, or fails at the first write.
    with suppress(OSError):
        print(visible(text), file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Text with characters escaped that steer a terminal or turn the direction of writing; line ends and tabs stay.

    For names and text out of files, which may say anything.
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def watched(stream: TextIO | None) -> bool:
    """Whether a standard stream is there and is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def prepare_streams() -> None:
    """Let both output streams escape what their encoding lacks, instead of failing; OSError without standard output."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        raise OSError(EBADF, "standard output is closed; nothing can be answered")


def abandon_output() -> None:
    """Send to nowhere what standard output still holds, so that the interpreter does not try again at its end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def report(error: ShohinError, as_json: bool) -> None:
    """An error as text, and with ``--json`` also as an object in OpenAI's shape."""
    note(f"shohin: {error}")
    if as_json:
        param, code = getattr(error, "param", None), getattr(error, "code", None)
        emit({"error": {"message": str(error), "type": type(error).__name__, "param": param, "code": code}})


def write_text(text: str) -> None:
    """A piece of an answer, at once; characters that the terminal can't show are escaped, never fatal."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A bar on standard error for (what, done, total) reports; None where nobody watches."""
    if not watched(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def read_prompt(prompt: str | None) -> str:
    """The prompt as given; ``-``, or none with a pipe on standard input, reads all of it as UTF-8.

    Of piped text one final line end is dropped: ``echo`` and editors put it there, and to a model it is a token.
    """
    from shohin.errors import BadRequest

    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        raise BadRequest("no prompt: give -p TEXT, or -p - to read standard input", param="prompt")
    raw = sys.stdin.buffer.read(LONGEST_INPUT + 1)
    if len(raw) > LONGEST_INPUT:
        raise BadRequest(f"standard input holds more than {LONGEST_INPUT >> 20} MiB, too long a prompt", param="prompt")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"standard input is not UTF-8: byte {error.start} is wrong", param="prompt") from None
    return text.removesuffix("\n").removesuffix("\r")
