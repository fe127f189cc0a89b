"""JSON from outside, read strictly."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from shohin.errors import BadRequest
from shohin.serve.body import parse_object


@pytest.mark.row("C21")
def test_table_of_bodies(cases: Path) -> None:
    """Rows about the body itself are refused; every other row that is valid JSON comes through unchanged."""
    for row in json.loads((cases / "server" / "bad_numbers.json").read_text()):
        raw = bytes.fromhex(row["body_hex"]) if "body_hex" in row else row["body"].encode()
        why = row.get("why")
        begin = time.perf_counter()
        if why in ("no messages", "wrong type"):
            parse_object(raw)
        elif why or any(word in row["body"] for word in ("NaN", "Infinity", "1e400", "1e309")):
            with pytest.raises(BadRequest) as caught:
                parse_object(raw)
            assert caught.value.code == "invalid_json"
            assert caught.value.param == (None if why else row["param"])
            assert len(str(caught.value)) < 300
        elif row["body"].count('"temperature"') > 1:
            with pytest.raises(BadRequest, match="'temperature' is given twice") as caught:
                parse_object(raw)
            assert caught.value.param == "temperature"
        else:
            assert parse_object(raw) == json.loads(raw)
        assert time.perf_counter() - begin < 1


@pytest.mark.parametrize("raw", ['{"a":"\\ud800"}', '{"\\udc00":1}', '{"a":[{"b":"x\\ud83d"}]}'])
def test_half_surrogates_are_refused(raw: str) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        parse_object(raw)


def test_depth() -> None:
    def nested(n: int) -> str:
        return '{"a":' + "[" * n + "]" * n + "}"

    assert parse_object(nested(128))
    for n in (129, 900, 5000, 10**6):
        with pytest.raises(BadRequest, match="nested"):
            parse_object(nested(n))


def test_good_bodies() -> None:
    assert parse_object(b'{"a":"\xc3\xa9\\ud83d\\ude00","b":[1,-0.5,1e300,null,true]}') == {
        "a": "é\U0001f600",
        "b": [1, -0.5, 1e300, None, True],
    }
    for bad in ("[1]", "1", '"x"', "null", "", "{", "{}{}", '{"a":-NaN}', "{'a':1}"):
        with pytest.raises(BadRequest):
            parse_object(bad)
