"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shohin.errors import ShohinError

Progress = Callable[[str, int, int], None]


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of standard output."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def note(text: str) -> None:
    """A remark for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


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
    if not sys.stderr.isatty():
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
    if prompt is None and sys.stdin.isatty():
        raise BadRequest("no prompt: give -p TEXT, or -p - to read standard input", param="prompt")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"standard input is not UTF-8: byte {error.start} is wrong", param="prompt") from None
    return text.removesuffix("\n").removesuffix("\r")
