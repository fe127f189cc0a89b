"""Chat templates: what they render, what they can't reach, and that they end."""

from __future__ import annotations

import copy
import json
import runpy
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shohin.errors import BadFile, BadRequest, ShohinError
from shohin.formats.text import ChatTemplate, TemplateLimits, Tokenizer, tokenizer_from_json, tokenizer_from_metadata

RECORDED = Path(__file__).parents[1] / "fixtures" / "chat_templates"
LISTED = runpy.run_path(str(RECORDED / "conversations.py"))
TALK = [{"role": "user", "content": "hi"}]


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source, "x.gguf: tokenizer.chat_template").render({"messages": TALK, **variables})


def with_template(metadata: Mapping[str, object], source: str) -> Tokenizer:
    return tokenizer_from_metadata({**metadata, "tokenizer.chat_template": source}, "x.gguf")


@pytest.mark.row("C18")
def test_case_features_render_as_transformers_does(cases: Path) -> None:
    for row in json.loads((cases / "templates" / "features.json").read_text()):
        variables = {"messages": row["messages"], "add_generation_prompt": row["add_generation_prompt"]}
        assert ChatTemplate(row["template"], "x").render(variables) == row["expected"]


@pytest.mark.row("C17")
def test_a_template_reaches_nothing(cases: Path, tmp_path: Path, tiny_metadata: Mapping[str, object]) -> None:
    (tmp_path / "tokenizer.json").write_bytes((cases / "tokenizer" / "tokenizer.json").read_bytes())
    for row in json.loads((cases / "templates" / "reach.json").read_text()):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": row["template"]}))
        for tokenizer in (with_template(tiny_metadata, row["template"]), tokenizer_from_json(tmp_path)):
            messages = copy.deepcopy(TALK)
            with pytest.raises(BadFile, match="chat_template"):
                tokenizer.render_chat(messages)
            assert messages == TALK
            assert tokenizer.encode("a") == [97]  # the rest of the model is not held up


@pytest.mark.row("C17")
@pytest.mark.parametrize(
    "source",
    [
        "{% set messages[0].content = 'x' %}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages.sort() }}",
        "{{ tools.clear() }}",
        "{{ messages[0].setdefault('x', 1) }}",
        "{{ cycler.__init__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 'a'.encode() }}",
        "{{ dict.fromkeys }}",
        "{{ (1).to_bytes(9) }}",
        "{{ namespace }}",
        "{{ cycler('a') }}",
        "{{ namespace(a=1) }}",
        "{{ [namespace(a=1)] }}",
        "{{ '{!r}'.format(namespace(a=1)) }}",
        "{{ '%r' % namespace(a=1) }}",
        "{{ namespace(a=1)|string }}",
        "{{ '{0.a.__class__}'.format(namespace(a=1)) }}",
        "{{ lipsum() }}",
        "{{ x|pprint }}",
        "{{ x|urlize }}",
        "{% debug %}",
    ],
)
def test_more_that_is_refused(source: str) -> None:
    messages, tools = copy.deepcopy(TALK), [{"a": 1}]
    with pytest.raises(ShohinError, match="chat_template"):
        render(source, messages=messages, tools=tools)
    assert messages == TALK and tools == [{"a": 1}]


S = "{% set s = 'a' * 1000000 %}"
NS = "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = "
BOMBS = {
    "an endless range": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "a filtered loop": "{% for i in range(100000) %}{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
    "lazy filters": "{% for i in range(100000) %}{% for j in range(100000)|map('string') %}{% endfor %}{% endfor %}",
    "a repeated text": "{{ 'a' * 10**9 }}",
    "a repeated list": "{{ [0] * 10**9 }}",
    "a repetition the other way": "{{ 10**9 * 'a' }}",
    "a wide field": "{{ '{:>1000000000}'.format(1) }}",
    "a wide field from an argument": "{{ '{:>{}}'.format('a', 10**9) }}",
    "many fields": "{% set s = '{0}' * 100000 %}{{ s.format('b' * 100000) }}",
    "a wide percent field": "{{ '%1000000000d' % 1 }}",
    "a wide percent field from an argument": "{{ '%*d' % (10**9, 1) }}",
    "many percent fields": "{% set s = '%(a)s' * 100000 %}{{ s % {'a': 'b' * 100000} }}",
    "many filter fields": "{% set s = '%(a)s' * 100000 %}{{ s|format(a='b' * 100000) }}",
    "a power": "{{ 9 ** 9999999 }}",
    "powers of powers": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a long number": "{{ ('f' * 4000000)|int(0, 16) }}",
    "rounding": "{{ (10 ** 1000)|round(-10**9) }}",
    "centred": "{{ 'a'.center(10**9) }}",
    "filled": "{{ 'a'.zfill(10**9) }}",
    "indented": "{{ 'a\nb'|indent(10**9) }}",
    "indented JSON": "{{ range(100000)|list|tojson(indent=100000) }}",
    "separated JSON": S + "{{ range(100000)|list|tojson(separators=(s, s)) }}",
    "batches": "{{ [1, 2]|batch(10**9, 'x')|list }}",
    "replaced": S + "{{ s.replace('a', s) }}",
    "replaced by a filter": S + "{{ s|replace('', s) }}",
    "joined": S + "{{ s.join(s) }}",
    "joined by a filter": S + "{{ s|list|join(s) }}",
    "doubled": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "added": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "nested lists": NS + "[ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "nested dicts": NS + "dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x|tojson }}",
    "nested namespaces": NS + "namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x ~ '' }}",
    "kept slices": S
    + "{% set ns = namespace() %}{% for i in range(9999) %}{% set ns.x = namespace(a=s[1:], b=ns.x) %}{% endfor %}",
    "a search in itself": "{% set s = 'a' * 4000000 %}{{ s.rfind('b' + s) }}",
    "stripped": "{% set s = 'a' * 4000000 %}{{ s.strip(s[1:] + 'b') }}",
    "trimmed": "{% set s = 'a' * 4000000 %}{{ s|trim('b' * 100000 + 'a') }}",
    "endless macros": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% for x in [1] recursive %}{% if loop.depth < 40 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}",
    "fixed text": "{% macro m() %}{% for i in range(100000) %}"
    + "A" * 10_000
    + "{% endfor %}{% endmacro %}{{ m()|length }}",
    "a set block": "{% set x %}{% for i in range(100000) %}" + "A" * 10_000 + "{% endfor %}{% endset %}",
    "macros of fixed text": "{% macro m() %}"
    + "A" * 100_000
    + "{% endmacro %}{% for i in range(99999) %}{% set x = m() %}{% endfor %}",
    "comparisons of long texts": "{% set a = 'x' * 8000000 %}{% set b = 'x' * 8000000 %}{{ a" + "==b==a" * 4000 + " }}",
    "searches in long texts": "{% set h = 'a' * 8000000 %}{% set n = 'a' * 2000000 ~ 'b' ~ 'a' * 2000000 %}"
    + "{% if n in h %}{% endif %}" * 1000,
    "comparisons by a test": "{% set a = 'x' * 8000000 %}{% set b = 'x' * 8000000 %}"
    + "{% if a is eq(b) %}{% endif %}" * 9000,
    "comparisons of lists": "{% set a = range(100000)|list %}{% set b = range(100000)|list %}{% set c = [a, a, a, a] %}"
    + "{% set d = [b, b, b, b] %}"
    + "{% if c != d %}{% endif %}" * 3000,
    "searches in ranges": "{% set r = range(100000) %}" + "{% if 'x' in r %}{% endif %}" * 5000,
    "searches in lazy filters": "{% for i in range(60) %}{{ 'x' in range(100000)"
    + "|map(attribute='real')" * 200
    + " }}{% endfor %}",
    "counted in long texts": "{% set a = 'x' * 8000000 %}" + "{% set x = a.count('xy') %}" * 5000,
    "much output": "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "a sum of lists": "{{ ([[1]] * 100000)|sum(start=[]) }}",
    "a time format": "{{ strftime_now('%1000000000Y') }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "deep loops": "{% for i in [1] %}" * 40 + "{% endfor %}" * 40,
    "a long chain": "{{ " + "1+" * 20_000 + "1 }}",
    "a long source": "x" * 300_000,
}


@pytest.mark.row("C17")
@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_asks_for_too_much_is_stopped(name: str) -> None:
    limits = TemplateLimits(seconds=1.0)
    start = time.thread_time()
    with pytest.raises(BadFile, match="chat_template"):
        ChatTemplate(BOMBS[name], "x.gguf: tokenizer.chat_template", limits=limits).render({"messages": TALK})
    assert time.thread_time() - start < 4


def test_comparisons_mean_what_they_mean_in_jinja() -> None:
    source = (
        "{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 1 < 0 < nothing.x }}{{ 'a' in {'a': 1} }}{{ 2 not in [1, [2]] }}"
        "{{ 5 in range(9) }}{{ '5' in range(9) }}{{ '5' in range(9)|map('string') }}{{ [1] == [1] }}{{ 'b' in 'abc' }}"
        "{{ nothing == nothing }}{{ 'x' in nothing }}{{ 1 == 1.0 != 2 }}"
    )
    assert render(source) == "TrueFalseFalseTrueTrueTrueFalseTrueTrueTrueTrueFalseTrue"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * 9_000_000}],
        [{"role": "user", "content": ""}] * 300_000,
        [{"role": "user", "content": "x" * 1_500_000}] * 5,
    ],
    ids=["long", "many", "together"],
)
def test_messages_that_are_too_large_are_the_callers_fault(messages: list[dict[str, str]]) -> None:
    with pytest.raises(BadRequest, match="messages are too large") as caught:
        render("{% for m in messages * 3 %}{{ m.content }}{% endfor %}", messages=messages)
    assert (caught.value.param, caught.value.code) == ("messages", "messages_too_large")


def test_limits_leave_room_for_real_conversations(smollm2_source: str, qwen3_source: str) -> None:
    talk = [{"role": r, "content": f"{i} " * 50} for i in range(1500) for r in ("user", "assistant")]
    for source in (smollm2_source, qwen3_source):
        assert render(source, messages=talk, add_generation_prompt=True).count("<|im_start|>") >= 3001
    long = [{"role": "user", "content": "word " * 1_000_000}]
    assert len(render(qwen3_source, messages=long)) > 5_000_000


def test_renderings_in_several_threads_have_budgets_of_their_own(qwen3_source: str) -> None:
    template = ChatTemplate(qwen3_source, "x")
    found: list[str] = []

    def work(text: str) -> None:
        found.extend(template.render({"messages": [{"role": "user", "content": text}]}) for _ in range(20))

    threads = [threading.Thread(target=work, args=(c * 5,)) for c in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(found)) == [f"<|im_start|>user\n{c * 5}<|im_end|>\n" for c in "abcd"] and len(found) == 80


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>&\"'}|tojson }}", '{"a": "<é>&\\""}'),
        ("{{ [1, {'b': none}]|tojson(indent=2) }}", '[\n  1,\n  {\n    "b": null\n  }\n]'),
        ("{{ {'b': 1, 'a': 2}|tojson }}", '{"b": 1, "a": 2}'),
        (
            "{{ {'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
            '{"a":"\\u00e9","b":1}',
        ),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        (
            "{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{{ loop.length }}{{"
            " loop.last }}{% endfor %}",
            "04False24False34True",
        ),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% else %}none{% endfor %}", "a1"),
        ("{% for c in 'abc' if c != 'b' %}{{ loop.index }}{{ c }}{{ loop.nextitem }}{% endfor %}", "1ac2c"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{% set x = [1, 2] %}{{ x[::-1] }}{{ x[0:1] + [3] }}{{ (1, 2)|join('-') }}", "[2, 1][1, 3]1-2"),
        ("{{ nothing }}{{ nothing is defined }}{{ messages[0].x or 'no' }}{{ none }}", "FalsenoNone"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{}:{:>3}'.format('b', 4) }}{{ '%s'|format(5) }}", "a-3b:  45"),
        ("{% set a, b = 1, 2 %}{{ a ~ b ~ 'c' ~ none }}{{ 7 // 2 }}{{ 2 ** 3 }}{{ -5 % 3 }}", "12cNone381"),
        (
            "{{ 'a,b'.split(',')|last }}{{ ' x '.strip() }}{{ 'x'.replace('x', 'yy') }}{{ '-'.join(['a', 'b']) }}",
            "bxyya-b",
        ),
        (
            "{{ messages|map(attribute='role')|list }}{{ messages|rejectattr('role', 'equalto', 'user')|list }}",
            "['user'][]",
        ),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}{{ m(1)"
            " }}{% call m(3) %}x{% endcall %}",
            "1232x",
        ),
        ("{% set j = joiner(', ') %}{% for x in 'ab' %}{{ j() }}{{ x }}{% endfor %}", "a, b"),
        ("{% filter upper %}a{% endfilter %}{% set x %}b{% endset %}{{ x|safe }}{{ '<'|e }}", "Ab&lt;"),
        (
            "{%- if messages is iterable and messages is not mapping and 'hi' in"
            " messages[0]['content'] -%} y {%- endif %}",
            "y",
        ),
        ("{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("  {% if true %}\n a\n  {% endif %}\nb\n", " a\nb"),
        ("{{ strftime_now('%Y')|length }}", "4"),
    ],
)
def test_features_beside_the_cases(source: str, expected: str) -> None:
    assert render(source) == expected
    chat_templates = pytest.importorskip(
        "transformers.utils.chat_template_utils", reason="transformers: the reference renderer"
    )
    compiled = chat_templates._compile_jinja_template(source)
    assert compiled.render(messages=TALK) == expected


def test_what_the_template_says_no_to_is_a_bad_request(tiny_metadata: Mapping[str, object]) -> None:
    tokenizer = with_template(tiny_metadata, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadRequest, match="roles must alternate") as caught:
        tokenizer.render_chat(TALK)
    assert (caught.value.param, caught.value.code) == ("messages", "template_error")


@pytest.mark.parametrize("raw", [False, True])
def test_what_a_template_never_looks_at_is_refused(tiny_metadata: Mapping[str, object], raw: bool) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    deaf = with_template(tiny_metadata, plain + "{% set mine = 1 %}{{ mine }} tools")
    asked: list[dict[str, Any]] = [
        {"tools": [{"a": 1}]},
        {"enable_thinking": True},
        {"mine": 2},
        {"documnets": []},
        {"level": 0},
    ]
    for use in asked:
        with pytest.raises(BadRequest, match="would have no effect") as caught:
            deaf.encode_chat(TALK, allow_control_in_content=raw, **use)
        assert (caught.value.param, caught.value.code) == (next(iter(use)), "unsupported_parameter")
    nothing = {"tools": [], "enable_thinking": False, "x": None}
    assert deaf.encode_chat(TALK, allow_control_in_content=raw, **nothing) == deaf.encode_chat(TALK)
    for reading in (
        "{% if tools %}{{ tools[0].a }}{{ level }}{% endif %}",
        "{% macro m() %}{{ tools }}{{ level }}{% endmacro %}{{ m() }}",
        "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}{{ level is defined }}",
        "{% set tools = tools or [] %}{% for t in tools %}{% if level == t %}{% endif %}{{ t }}{% endfor %}",
    ):
        hearing = with_template(tiny_metadata, plain + reading)
        assert len(hearing.encode_chat(TALK, tools=[{"a": 1}], level=1, allow_control_in_content=raw)) > 2
    metadata = {**tiny_metadata, "tokenizer.chat_template": plain, "tokenizer.chat_template.tool_use": "T{{ tools }}"}
    named = tokenizer_from_metadata(metadata, "x.gguf")
    assert len(named.encode_chat(TALK, tools=[{"a": 1}], allow_control_in_content=raw)) > 3


def test_a_model_without_a_template_says_so(tiny_metadata: Mapping[str, object]) -> None:
    metadata = {k: v for k, v in tiny_metadata.items() if k != "tokenizer.chat_template"}
    tokenizer = tokenizer_from_metadata(metadata, "x.gguf")
    assert tokenizer.chat_template is None
    with pytest.raises(BadRequest, match="no chat template") as caught:
        tokenizer.encode_chat(TALK)
    assert caught.value.code == "no_chat_template"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        {},
        [5],
        ["hi"],
        [{}],
        [{"role": 5, "content": "x"}],
        [{"role": None}],
        [{1: 2, "role": "user"}],
        [{"role": "user", "content": "\ud800"}],
        [{"role": "user", "content": b"x"}],
        [{"role": "user", "content": object()}],
        [{"role": "user", "content": {"a": {1}}}],
        [{"role": "user", "content": 2**5000}],
    ],
)
def test_messages_that_are_none_are_refused(tiny: Tokenizer, messages: Any) -> None:
    with pytest.raises(BadRequest):
        tiny.encode_chat(messages)


def test_deep_messages_tools_and_options_are_refused(tiny: Tokenizer) -> None:
    deep: Any = "x"
    for _ in range(2000):
        deep = [deep]
    for use in ({"messages": [{"role": "user", "content": deep}]}, {"tools": [{"x": deep}]}, {"option": deep}):
        with pytest.raises(BadRequest, match="deep"):
            tiny.render_chat(**{"messages": TALK, **use})
    for bad in ({"tools": "x"}, {"tools": {}}, {"option": object()}):
        with pytest.raises(BadRequest):
            tiny.render_chat(TALK, **bad)


@pytest.fixture(scope="module")
def qwen3_source() -> str:
    return (RECORDED / "qwen3.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def smollm2_source() -> str:
    return (RECORDED / "smollm2.jinja").read_text(encoding="utf-8")


@pytest.mark.row("C18")
@pytest.mark.parametrize("model", ["qwen3", "smollm2"])
def test_real_templates_render_as_recorded_from_transformers(model: str, tiny_metadata: Mapping[str, object]) -> None:
    tokenizer = with_template(tiny_metadata, (RECORDED / f"{model}.jinja").read_text(encoding="utf-8"))
    recorded = json.loads((RECORDED / f"{model}.json").read_text(encoding="utf-8"))
    for talk, expected in zip(LISTED["CONVERSATIONS"], recorded, strict=True):
        before = copy.deepcopy(talk)
        prompt = talk.get("add_generation_prompt", True)
        got = tokenizer.render_chat(
            talk["messages"], tools=talk.get("tools"), add_generation_prompt=prompt, **talk.get("options", {})
        )
        assert got == expected, talk
        assert talk == before


@pytest.mark.row("C18")
def test_qwen3_renders_and_encodes_as_transformers_does_now(qwen3_files: Path, qwen3: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers: the reference renderer")
    reference = transformers.AutoTokenizer.from_pretrained(str(qwen3_files))
    for talk in LISTED["CONVERSATIONS"]:
        options = {"tools": talk.get("tools"), "add_generation_prompt": talk.get("add_generation_prompt", True)}
        options |= talk.get("options", {})
        messages = LISTED["without_null_content"](talk["messages"])
        expected = reference.apply_chat_template(messages, tokenize=False, **options)
        assert qwen3.render_chat(talk["messages"], **options) == expected
        ids = reference.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
        assert qwen3.encode_chat(talk["messages"], **options) == ids, talk


def test_the_smollm2_file_carries_the_recorded_template(smollm2: Tokenizer, smollm2_source: str) -> None:
    assert smollm2.chat_template == smollm2_source
    assert smollm2.encode_chat(TALK)[:2] == [1, 9690]


def test_the_qwen3_files_carry_the_recorded_template(qwen3: Tokenizer, qwen3_source: str) -> None:
    assert qwen3.chat_template == qwen3_source
