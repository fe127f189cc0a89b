"""A model's chat template: compiled once, rendered within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from shohin.errors import BadFile, BadRequest
from shohin.formats.text.budget import Budget, OverBudget, TemplateLimits, current, spending
from shohin.formats.text.sandbox import Refused, Sandbox

_MOST_SOURCE = 256 << 10  # characters; published templates have at most some 30 thousand
_NO_LIMITS = TemplateLimits()
# Variables of less than this share of what one value may hold are no reason for a limit to be reached.
_LARGE_SHARE = 16


class ChatTemplate:
    """Jinja source from a model file. What transformers renders is the reference, character for character.

    Bounded: processor time, steps, the size of each value, of the output and of all values together (TemplateLimits);
    compiling has the same limits and takes sources of at most 256 Ki characters. A single operation is not interrupted,
    but each works on values of bounded size. Nothing outside the template is reachable and no argument is changed.
    """

    def __init__(
        self,
        source: str,
        origin: str,
        *,
        limits: TemplateLimits = _NO_LIMITS,
        literal: Callable[[str], str] | None = None,
    ) -> None:
        """origin names file and key in messages. literal: applied to every fixed text in the template.

        ``reads`` is then the names of the variables that the template looks at.

        BadFile where the source doesn't compile, with the line.
        """
        self._origin = origin
        self._limits = limits
        self._sandbox = Sandbox()
        self.reads: frozenset[str] = frozenset()
        self._template = self._compile(source, literal)

    def render(self, variables: Mapping[str, Any], now: datetime | None = None) -> str:
        """The text for these variables (``messages``, ``tools``, ``add_generation_prompt``, ...), all plain data.

        now: what ``strftime_now`` shows, by default the present.

        BadRequest where the template refuses them or can't work with them, or where they are too large; BadFile where
        it reaches for something forbidden or goes over its limits with variables of ordinary size.
        """
        try:
            with spending(Budget(self._limits, now)):
                return self._collect(variables)
        except (OverBudget, RecursionError, OverflowError, MemoryError) as error:
            raise self._over(variables, error) from error
        except SecurityError as error:
            raise BadFile(f"{self._origin}: forbidden: {error}; nothing was rendered") from error
        except Refused as error:
            raise BadRequest(
                f"{self._origin}: the template refused the messages: {error}", param="messages", code="template_error"
            ) from error
        except Exception as error:  # whatever a stranger's template can bring about
            raise BadRequest(
                f"{self._origin}: the template can't work with these messages: {type(error).__name__}: {error}",
                param="messages",
                code="template_error",
            ) from error

    def _over(self, variables: Mapping[str, Any], error: Exception) -> BadFile | BadRequest:
        """Whose fault it is that a limit was reached: large variables are, since any template handles them at least
        once; with others it is the template.
        """
        ordinary = replace(
            self._limits, value=self._limits.value // _LARGE_SHARE, elements=self._limits.elements // _LARGE_SHARE
        )
        try:
            Budget(ordinary).count([*variables.values()])
        except OverBudget as size:
            return BadRequest(
                f"{self._origin}: the messages are too large for a chat template: {error} ({size} in a conversation "
                f"that is sure to be rendered); send fewer or shorter ones",
                param="messages",
                code="messages_too_large",
            )
        return BadFile(f"{self._origin}: the template is over its limits: {error}; nothing was rendered")

    def _collect(self, variables: Mapping[str, Any]) -> str:
        current().measure([*variables.values()])
        chunks: list[str] = []
        size = 0
        for chunk in self._template.generate(variables):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._limits.output:
                raise OverBudget(f"more than {self._limits.output} characters of output")
        return "".join(chunks)

    def _compile(self, source: str, literal: Callable[[str], str] | None) -> Template:
        if len(source) > _MOST_SOURCE:
            raise BadFile(f"{self._origin}: {len(source)} characters, more than the {_MOST_SOURCE} a template may have")
        try:
            with spending(Budget(self._limits)):
                tree = self._sandbox.guarded(source)
                self.reads = frozenset(find_undeclared_variables(tree))
                if literal is not None:
                    _rewrite(tree, literal)
                return self._sandbox.from_string(tree)
        except TemplateSyntaxError as error:
            raise BadFile(f"{self._origin}: line {error.lineno}: {error.message}") from error
        except Exception as error:  # too deep for the parser, or an operation on constants gone wrong
            raise BadFile(f"{self._origin}: does not compile: {type(error).__name__}: {error}") from error


def _rewrite(tree: nodes.Template, literal: Callable[[str], str]) -> None:
    for data in tree.find_all(nodes.TemplateData):
        data.data = literal(data.data)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            constant.value = literal(constant.value)
