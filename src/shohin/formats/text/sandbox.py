"""The Jinja environment that chat templates run in.

A template is data from a stranger. Jinja's immutable sandbox keeps it away from Python's inside; what is added here
keeps it from running for ever or filling memory. Every operation that makes a value is on a list, and reports to the
rendering's Budget: loop rounds, calls, filters, tests, operators, literals, slices and text written. What could grow
faster than its operands (``*``, ``**``, ``%``, ``replace``, ``join``, padding, format widths) is sized before it runs;
anything else is at most a small multiple of what was already measured, so one operation past the limit is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from shohin.formats.text import growth
from shohin.formats.text.budget import current
from shohin.formats.text.filters import LISTED, data

_STR_METHODS = (
    "capitalize casefold center count endswith find format format_map index isalnum isalpha isascii isdecimal isdigit "
    "islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace "
    "rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill"
)
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(_STR_METHODS.split())),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
)
# Jinja's own objects, whose public attributes are safe by Jinja's word.
_OPEN = (LoopContext, Namespace, Cycler, Joiner, Macro, TemplateReference, BlockReference, Undefined)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates are written for it: blocks trimmed, ``break`` and ``continue``, ``tojson`` that escapes
    no HTML, ``raise_exception``, ``strftime_now``, ``generation`` blocks. What a name means follows transformers.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[loopcontrols, _Generation],
            finalize=_written,
        )
        self.filters = {name: _counted(filter_, name) for name, filter_ in LISTED.items()}
        tests: Any = self.tests
        self.tests = {name: _counted(test) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals["namespace"] = _PublicNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: current().now.strftime(growth.time_format(form))
        self.each = lambda items, written: current().each(items, written)
        self.measured = lambda value: current().measure(value)
        self.compared = lambda value: current().compared(value)
        self.joined = _joined
        self.written = 0

    def guarded(self, source: str) -> nodes.Template:
        """Parse a template and put the counters in. Sets ``written``, the fixed text in the whole template."""
        tree = self.parse(source)
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise SecurityError(f"line {node.lineno}: a chat template can't use other files")
        self.written = _fixed_text(tree)
        _Counters().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Listed methods of plain data, and what Jinja allows of its own objects."""
        for kind, names in _METHODS:
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, _OPEN) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Every call in a template: counted, sized before where it can grow, measured after."""
        budget = current()
        if __obj is __self.compared:
            return budget.compared(args[0])
        budget.step(*args, getattr(__obj, "__self__", None))
        if isinstance(__obj, (LoopContext, Macro, BlockReference)):
            budget.charge(__self.written)
        if isinstance(__obj, LoopContext) and args:
            args = (budget.each(args[0]), *args[1:])
        if isinstance(__obj, (BuiltinMethodType, MethodType)) and isinstance(__obj.__self__, str):
            args = growth.check_method(budget, __obj.__self__, __obj.__name__, args)
        return budget.measure(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Every operator but comparison and ``~``."""
        budget = current()
        budget.step(left, right)
        growth.check_operator(budget, operator, left, right)
        return budget.measure(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` with fields looked up through the sandbox and widths bounded."""
        if not isinstance(value, (MethodType, BuiltinMethodType)) or value.__name__ not in ("format", "format_map"):
            return None
        text = value.__self__
        if not isinstance(text, str):
            return None
        formatter = _BoundedFormatter(self)

        def format_(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                return formatter.vformat(text, (), args[0])
            return formatter.vformat(text, args, kwargs)

        return format_


class _BoundedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        growth.check_widths(format_spec)
        return current().measure(super().format_field(data(value), format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(data(value), conversion)


class _PublicNamespace(Namespace):
    """A namespace that holds no name with an underscore in front: nothing from Python's inside can be shadowed."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant says, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Counters(NodeTransformer):
    """Puts calls to the environment's counters around loops, literals, slices, ``~`` and what is compared."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        written = _fixed_text(node)
        self.generic_visit(node)
        node.iter = _ask("each", node.iter, nodes.Const(written))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _ask("compared", node.expr)
        for operand in node.ops:
            operand.expr = _ask("compared", operand.expr)
        return node

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _ask("measured", node)

    visit_List = visit_Dict = visit_Tuple = _literal  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _ask("measured", node) if isinstance(node.arg, nodes.Slice) else node


def _counted(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """A filter or test that reports to the budget; Jinja's marks on the function are kept by ``wraps``."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step(*args)
        if name:
            args = (*args[:skipped], *growth.check_filter(budget, name, args[skipped:], kwargs))
        return budget.measure(function(*args, **kwargs))

    return counted


def _ask(name: str, *args: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None, lineno=args[0].lineno)


def _fixed_text(node: nodes.Node) -> int:
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


def _written(value: Any) -> str:
    text = str(data(value))
    current().measure(text)
    return text


def _joined(*values: Any) -> str:
    texts = [str(data(value)) for value in values]
    current().allow(sum(map(len, texts)))
    return _written("".join(texts))


class Refused(TemplateError):
    """The template called ``raise_exception``."""


def _raise_exception(message: Any) -> NoReturn:
    raise Refused(str(data(message)))


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't hold {name!r}: names with an underscore in front are private")
