"""``shohin chat``: turn by turn, with a prompt cache between turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shohin.errors import BadRequest, ContextFull, UnsupportedFormat
from shohin.generate import Hooks, Session
from shohin.serve.cli.answer import Job, Loaded, load_model, prepare_answer, profiled, rates, summary
from shohin.serve.cli.output import emit, note, watched, write_text
from shohin.serve.completion import Response, check_length, stream_generate
from shohin.serve.defaults import chat_options
from shohin.serve.parsing import ThinkingSplitter, opens_thinking

HELP = """/reset         forget the conversation
/system TEXT   start anew with this system message (without TEXT: none)
/exit          end (so does Ctrl-D)
\"\"\"            begins and ends a message of several lines
Ctrl-C         stops an answer"""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass
class Talk:
    """A conversation: the model, its prompt cache, what was said."""

    loaded: Loaded
    job: Job
    session: Session
    hooks: Hooks
    options: dict[str, Any]
    system: str | None
    said: list[dict[str, Any]] = field(default_factory=list)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.said.clear()
        self.session.reset()

    def turn(self, text: str) -> None:
        """One message and its answer. What Ctrl-C cuts short stays said; a refused message is taken back."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages += [*self.said, {"role": "user", "content": text}]
        tokenizer, job = self.loaded.tokenizer, self.job
        check_length(tokenizer, (text,), self.loaded.model.context)
        ids = tokenizer.encode_chat(messages, **self.options)
        prepare_answer(self.loaded, len(ids) - self.session.shared(np.array(ids, np.int32)))
        completion = stream_generate(
            self.loaded.model, tokenizer, ids, session=self.session, hooks=self.hooks, **job.sampling
        )
        screen = Screen(
            opens_thinking(ids, tokenizer.think_ids, tokenizer.token_bytes), tokenizer.think_ids, job.as_json
        )
        responses: list[Response] = []
        try:
            with completion:
                for response in completion:
                    responses.append(response)
                    screen.push(response)
        except KeyboardInterrupt:
            note("\n[stopped]")
        screen.finish()
        model, times = self.loaded.model, completion.timings
        if times.prompt_tokens + times.generated_tokens >= model.context:
            note(f"\n[cut: the context of {model.context} tokens is full; /reset forgets, --ctx-size gives more]")
        self.said += [{"role": "user", "content": text}, {"role": "assistant", "content": screen.content}]
        if job.as_json:
            emit(summary(self.loaded, completion, responses))
        else:
            write_text("\n")
            rates(completion)


class Screen:
    """Writes an answer as it comes, its thinking dimmed; ``content`` is the answer without the thinking."""

    def __init__(self, opened: bool, markers: tuple[int, int] | None, quiet: bool) -> None:
        self.content = ""
        self._splitter = ThinkingSplitter(markers, prompt_opened=opened)
        self._quiet = quiet
        self._colour = watched(sys.stdout)

    def push(self, response: Response) -> None:
        """The text of one more token."""
        self._say(self._splitter.push(response.token, response.text))

    def finish(self) -> None:
        """What the splitter still held back."""
        self._say(self._splitter.finish())

    def _say(self, said: Any) -> None:
        self.content += said.content
        if self._quiet:
            return
        if said.reasoning:
            write_text(f"{DIM}{said.reasoning}{PLAIN}" if self._colour else said.reasoning)
        if said.content:
            write_text(said.content)


def chat(name: str, job: Job, *, system: str | None, think: bool | None) -> None:
    """Load and talk until the input ends."""
    loaded = load_model(name, job)
    if loaded.tokenizer.chat_template is None:
        raise UnsupportedFormat(f"{name} has no chat template; continue texts with: shohin run --raw")
    options = chat_options(None if think is None else {"enable_thinking": think})
    with profiled(job, loaded.model) as hooks, Session(loaded.model) as session:
        talk = Talk(loaded, job, session, hooks, options, system)
        if watched(sys.stdin):
            note(f"{loaded.tokenizer.name} on {loaded.model.device.name}. /help lists what you can type.")
        for message in messages():
            try:
                if not command(talk, message):
                    talk.turn(message)
            except EOFError:
                return
            except BadRequest as error:
                hint = "; /reset forgets the conversation" if isinstance(error, ContextFull) else ""
                note(f"shohin: {error}{hint}")
                if job.as_json:
                    emit(
                        {
                            "error": {
                                "message": str(error),
                                "type": "BadRequest",
                                "param": error.param,
                                "code": error.code,
                            }
                        }
                    )


def command(talk: Talk, message: str) -> bool:
    """Carry out a line that starts with a slash; False for an ordinary message. EOFError ends the talk."""
    word, _, rest = message.strip().partition(" ")
    if word in ("/exit", "/quit", "/bye"):
        raise EOFError
    if word == "/help":
        note(HELP)
    elif word == "/reset":
        talk.reset()
        note("[forgotten]")
    elif word == "/system":
        talk.system = rest.strip() or None
        talk.reset()
        note("[new conversation]")
    elif word.startswith("/") and word[1:].isalpha():
        note(f"there is no {word}; /help lists what there is")
    else:
        return False
    return True


def messages() -> Iterator[str]:
    """What the person types, or the lines of a pipe; three quotes hold several lines together."""
    if sys.stdin is None:
        return
    asks = watched(sys.stdin)
    if asks:
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
    while True:
        try:
            line = read_line("> " if asks else "")
            if line.lstrip().startswith('"""'):
                line = block(line.lstrip()[3:], asks)
        except EOFError:
            if asks:
                note("")
            return
        except KeyboardInterrupt:
            note("\n(/exit or Ctrl-D ends)")
            if not asks:
                raise
            continue
        if line.strip():
            yield line


def read_line(prompt: str) -> str:
    """One line; BadRequest where it is not text."""
    try:
        return input(prompt)
    except UnicodeDecodeError as error:
        raise BadRequest(f"standard input is not UTF-8: {error}", param="prompt") from None


def block(first: str, asks: bool) -> str:
    """Lines up to the closing three quotes, or to the end of the input; what follows the quotes belongs to it too."""
    lines = [first]
    while '"""' not in lines[-1]:
        try:
            lines.append(read_line("… " if asks else ""))
        except EOFError:
            break
    lines[-1] = lines[-1].replace('"""', "", 1)
    return "\n".join(lines).strip("\n")
