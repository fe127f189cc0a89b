"""The filters that chat templates may use: Jinja's own where growth is bounded, ``tojson`` and ``join`` as ours.

Left out, so that a template that uses one is refused by name: center, filesizeformat, pprint, random, striptags,
urlencode, urlize, wordwrap, xmlattr.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Undefined

from shohin.formats.text.budget import current

_FROM_JINJA = (
    "abs attr batch capitalize count d default dictsort e escape first float forceescape format groupby indent int "
    "items last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice "
    "sort string sum title trim truncate unique upper wordcount"
)


@pass_environment
def _join(environment: Environment, values: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
    """Like Jinja's, but sized while the parts are collected: they may come from a generator."""
    get: Callable[[Any], Any] = data if attribute is None else make_attrgetter(environment, attribute)
    budget, between, size = current(), str(d), 0
    texts = []
    for value in budget.each(values):
        texts.append(str(data(get(value))))
        size += len(texts[-1]) + len(between)
        budget.allow(size)
    return between.join(texts)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON without HTML escapes, as transformers writes it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def data(value: Any) -> Any:
    """Refuse to write out what is no data, and what the sandbox kept away: Jinja's own objects show their inside."""
    if isinstance(value, Undefined) and value._undefined_exception is SecurityError:
        raise SecurityError(value._undefined_message)
    if value is None or isinstance(value, (str, int, float, list, tuple, dict, range, Undefined)):
        return value
    raise SecurityError(f"a {type(value).__name__} can't be written out")


LISTED: Mapping[str, Callable[..., Any]] = {
    **{name: FILTERS[name] for name in _FROM_JINJA.split()},
    "join": _join,
    "tojson": _tojson,
}
