"""The command line: the JSON shapes that other tools read, pipes, switches, and errors that say what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from doors.conftest import BENCH_KEYS, Shohin

RUN_KEYS = {"text", "ids", "prompt_tokens", "generated_tokens", "finish_reason", "seconds"}
INFO_KEYS = {"architecture", "format", "parameters", "file_bytes", "context", "device", "kernels", "tensors"}


def test_run_json(shohin: Shohin, tiny: Path) -> None:
    done = shohin("run", tiny, "-p", "the thing", "-n", 8, "--temp", 0, "--raw", "--json")
    assert done.status == 0, done.err
    found = done.json
    assert found.keys() >= RUN_KEYS
    assert found["seconds"].keys() == {"load", "prefill", "decode"}
    assert len(found["ids"]) == found["generated_tokens"] <= 8
    assert found["finish_reason"] in ("stop", "length")
    assert found["activations"] == "int8"


@pytest.mark.parametrize("device", ["cpu", "host"])
def test_greedy_ids_are_those_of_the_reference(shohin: Shohin, tiny: Path, cases: Path, device: str) -> None:
    """The expected file's greedy run, its prompt given as text whose ids are checked first."""
    expected = json.loads((cases / "expected" / "tiny_q1.json").read_text())["greedy"][0]
    import shohin as library

    model, _ = library.load(tiny, device=device, activations="exact")
    tokens = [t.id for t in library.generate(model, expected["prompt"], library.SamplingParams(max_tokens=8))]
    assert tokens == expected["tokens"]
    text = "the and thing"
    cli = shohin("run", tiny, "-p", text, "-n", 8, "--temp", 0, "--raw", "--json", "--device", device)
    assert cli.json["device"] == device
    assert cli.json["prompt_tokens"] == len(shohin("tokenize", tiny, "-p", text, "--json").json["ids"])


def test_text_comes_alone_on_standard_output(shohin: Shohin, tiny: Path) -> None:
    plain = shohin("run", tiny, "-p", "a", "-n", 4, "--temp", 0, "--raw")
    as_json = shohin("run", tiny, "-p", "a", "-n", 4, "--temp", 0, "--raw", "--json").json
    assert plain.status == 0
    assert plain.out.encode("utf-8", "backslashreplace").decode() == as_json["text"] + "\n"


def test_prompt_from_a_pipe(shohin: Shohin, tiny: Path) -> None:
    flags = ("-n", 4, "--temp", 0, "--raw", "--json")
    given = shohin("run", tiny, "-p", "the ring", *flags).json["ids"]
    assert shohin("run", tiny, "-p", "-", *flags, stdin="the ring").json["ids"] == given
    assert shohin("run", tiny, *flags, stdin="the ring").json["ids"] == given


def test_pipe_that_is_not_utf8(shohin: Shohin, tiny: Path) -> None:
    done = shohin("run", tiny, "-p", "-", stdin=b"\xff\xfe")
    assert done.status == 1
    assert "UTF-8" in done.err


def test_run_without_a_model_uses_the_shipped_one_and_says_so(shohin: Shohin) -> None:
    done = shohin("run", "-p", "Who art thou?", "-n", 40, "--seed", 1, env={"HF_HUB_OFFLINE": "1"})
    assert done.status == 0
    assert "comes with the package" in done.err
    assert len(done.out.split()) >= 3
    assert shohin("tokenize", "-p", "my lord", "--json").json["count"] == 2


def test_error_as_json(shohin: Shohin, tmp_path: Path) -> None:
    done = shohin("run", tmp_path / "absent.gguf", "-p", "x", "--json")
    assert done.status == 1
    assert done.json["error"].keys() == {"message", "type", "param", "code"}
    assert "absent.gguf" in done.json["error"]["message"]


def test_unknown_flag_is_usage(shohin: Shohin) -> None:
    done = shohin("run", "--nope")
    assert done.status == 2
    assert "--nope" in done.err and "Traceback" not in done.err


@pytest.mark.row("C08")
def test_bad_file_is_named(shohin: Shohin, tiny: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-1024])
    for command in (("run", cut, "-p", "x"), ("info", cut), ("validate", cut), ("tokenize", cut, "-p", "x")):
        done = shohin(*command)
        assert done.status == 1
        assert "cut.gguf" in done.err and "Traceback" not in done.err


def test_info_of_a_model(shohin: Shohin, tiny: Path) -> None:
    found = shohin("info", tiny, "--json").json
    assert found.keys() >= INFO_KEYS
    assert (found["architecture"], found["format"], found["context"]) == ("qwen3", "Q1_0", 4096)
    assert found["file_bytes"] == tiny.stat().st_size
    assert sum(found["tensors"].values()) == 24


def test_info_without_a_model(shohin: Shohin) -> None:
    found = shohin("info", "--json").json
    assert set(found["devices"]) == {"cpu", "host"}
    assert found["formats"]["Q1_0"]["cpu"] == "native"
    assert "generic" in found["tiers"]["cpu"]


def test_the_environment_forces_a_kernel_tier(shohin: Shohin, tiny: Path) -> None:
    generic = {"SHOHIN_CPU": "generic"}
    assert shohin("info", "--json", env=generic).json["kernels"]["cpu"].startswith("generic, ")
    assert shohin("info", tiny, "--json", env=generic).json["kernels"].startswith("generic, ")
    refused = shohin("info", env={"SHOHIN_CPU": "mmx"})
    assert refused.status != 0 and "'mmx'" in refused.err and "generic" in refused.err


def test_validate(shohin: Shohin, tiny: Path, tmp_path: Path) -> None:
    assert shohin("validate", tiny, "--json").json["valid"] is True
    raw = bytearray(tiny.read_bytes())
    raw[-4:] = np.float32(np.nan).tobytes()  # the last norm's last weight
    bad = tmp_path / "nan.gguf"
    bad.write_bytes(raw)
    done = shohin("validate", bad)
    assert done.status == 1
    assert "output_norm.weight" in done.err and "NaN" in done.err


def test_tokenize(shohin: Shohin, tiny: Path) -> None:
    found = shohin("tokenize", tiny, "-p", "the<|im_end|>", "--json").json
    special = shohin("tokenize", tiny, "-p", "the<|im_end|>", "--special", "--json").json
    assert found["count"] == len(found["ids"]) > special["count"] == 2
    assert shohin("tokenize", tiny, "-p", "the", "--ids").out.split() == [str(special["ids"][0])]


@pytest.mark.row("C27")
def test_a_prompt_that_does_not_fit_is_refused(shohin: Shohin, tiny: Path) -> None:
    done = shohin("run", tiny, "-p", "x" * 64, "--raw", "-c", 64, "--json")
    assert done.status == 1
    assert done.json["error"]["code"] == "context_length_exceeded"
    assert "64" in done.json["error"]["message"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--temp", "nan"), "temperature"),
        (("--top-p", "1.5"), "top_p"),
        (("--top-k", "-2"), "top_k"),
        (("--seed", str(2**64)), "seed"),
        (("-n", "-1"), "max_tokens"),
        (("--kv", "f8"), "kv"),
        (("--activations", "int4"), "activations"),
        (("--threads", "0"), "threads"),
        (("--device", "quantum"), "quantum"),
        (("--logit-bias", "x"), "logit-bias"),
        (("--logit-bias", "99999=1"), "logit_bias"),
        (("--profile", "maybe"), "profile"),
        (("-c", "0"), "context"),
        (("-c", "999999999"), "context"),
    ],
)
def test_bad_settings_are_named(shohin: Shohin, tiny: Path, flags: tuple[str, ...], word: str) -> None:
    done = shohin("run", tiny, "-p", "x", "-n", 1, *flags)
    assert done.status in (1, 2)
    assert word in done.err and "Traceback" not in done.err


@pytest.mark.row("S0.36", "S0.39", "T.12")
def test_profile_switches(shohin: Shohin, tiny: Path) -> None:
    command = ("run", tiny, "-p", "x", "-n", 3, "--raw", "--temp", 0, "--logit-bias", "281=-100", "--json")
    plain = shohin(*command)
    by_flag = shohin(*command, "--profile", "layer")
    assert "layer 00 =" in by_flag.err and "tail (norm+lmhead+argmax)" in by_flag.err
    by_env = shohin(*command, env={"SHOHIN_PROFILE": "1"})
    assert "token 0:" in by_env.err and "GB/s" in by_env.err
    off = shohin(*command, env={"SHOHIN_PROFILE": "0"})
    assert "token 0:" not in off.err
    assert plain.json["ids"] == by_flag.json["ids"] == by_env.json["ids"] == off.json["ids"]


def test_seed_repeats(shohin: Shohin, tiny: Path) -> None:
    flags = ("run", tiny, "-p", "a", "-n", 12, "--raw", "--temp", 1, "--json")
    first, again = (shohin(*flags, "--seed", 7).json for _ in range(2))
    assert first["ids"] == again["ids"] and first["seed"] == 7
    other = shohin(*flags, "--seed", 8).json
    free = shohin(*flags).json
    assert shohin(*flags, "--seed", free["seed"]).json["ids"] == free["ids"], "the seed that was drawn is told"
    assert other["ids"] != first["ids"]


def test_chat_by_pipe(shohin: Shohin, tiny: Path) -> None:
    script = 'hello\n/reset\nhello\n"""\ntwo\nlines"""\n/nonsense\n/exit\nnever read\n'
    done = shohin("chat", tiny, "-n", 6, "--temp", 0, "--json", stdin=script)
    turns = [json.loads(line) for line in done.out.splitlines()]
    assert done.status == 0 and len(turns) == 3
    assert turns[0]["ids"] == turns[1]["ids"], "after /reset the conversation starts anew"
    assert turns[2]["prompt_tokens"] > turns[0]["prompt_tokens"], "the third turn sees the second"
    assert "/nonsense" in done.err


def test_chat_goes_on_after_a_message_that_does_not_fit(shohin: Shohin, tiny: Path) -> None:
    done = shohin("chat", tiny, "-c", 256, "-n", 2, "--temp", 0, "--json", stdin="x" * 400 + "\nhi\n")
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first["error"]["code"] == "context_length_exceeded"
    assert second["generated_tokens"] >= 1


@pytest.mark.row("C31")
def test_bench_json(shohin: Shohin, tiny: Path) -> None:
    found = shohin("bench", tiny, "-p", 16, "-n", 4, "--threads", 1, "--json").json
    assert found.keys() >= BENCH_KEYS
    assert found["device"] == "cpu" and found["threads"] == 1
    assert 0 < found["decode_over_floor"] < 2


def test_bench_refuses_two_models(shohin: Shohin, tiny: Path) -> None:
    done = shohin("bench", tiny, "--synthetic", "bonsai-1.7b")
    assert done.status == 1 and "not both" in done.err
    done = shohin("bench", "--synthetic", "bonsai-99b")
    assert done.status == 1 and "bonsai-1.7b" in done.err


def test_offline_never_asks_the_network(shohin: Shohin, tmp_path: Path) -> None:
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    begin = time.monotonic()
    done = shohin("run", "prism-ml/Bonsai-1.7B-gguf", "-p", "x", env=env)
    assert done.status == 1 and "prism-ml/Bonsai-1.7B-gguf" in done.err
    assert time.monotonic() - begin < 20


def start(*args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "shohin", *map(str, args)], stdout=-1, stderr=-1, stdin=-1)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_ends_run_with_130(shohin: Shohin, tiny: Path) -> None:
    with start("run", tiny, "-p", "x", "--raw", "--temp", "1", "--logit-bias", "282=-100") as process:
        assert process.stdout is not None
        process.stdout.read(1)  # it has begun to write
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode in (0, 130), err
    assert b"Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_ends_quietly(shohin: Shohin, tiny: Path) -> None:
    with start("run", tiny, "-p", "x", "--raw", "--temp", "1", "--logit-bias", "282=-100") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode != 0
    assert err == b""


def test_the_environment_is_only_a_default(shohin: Shohin, tiny: Path, cases: Path) -> None:
    """Two models on the command line are refused; one there and another in the environment are not."""
    other, command = cases / "gguf" / "tiny_yarn.gguf", ("info", "--json")
    done = shohin(*command, "-m", tiny, other, env={"SHOHIN_MODEL": str(tiny)})
    assert done.status == 1 and "two models" in done.err
    for args in ((other,), ("-m", other)):
        assert shohin(*command, *args, env={"SHOHIN_MODEL": str(tiny)}).json["file"] == str(other)
    assert shohin(*command, env={"SHOHIN_MODEL": str(other)}).json["file"] == str(other)


def test_a_setting_that_the_device_lacks_is_refused(shohin: Shohin, tiny: Path) -> None:
    done = shohin("info", tiny, "--device", "host", "--threads", 7)
    assert done.status == 1 and "threads" in done.err
    by_default = {"SHOHIN_THREADS": "2"}
    assert shohin("info", tiny, "--device", "host", "--json", env=by_default).json["device"] == "host"
    assert shohin("info", tiny, "--json", env={**by_default, "SHOHIN_DEVICE": "host"}).json["device"] == "host"
    assert "2 threads" in shohin("info", tiny, "--json", env=by_default).json["kernels"]


def renamed(tiny: Path, target: Path, name: bytes) -> Path:
    """The tiny model under another ``general.name`` of the same length as its own."""
    raw = tiny.read_bytes()
    at = raw.index(b"general.name") + len(b"general.name") + 4
    length = int.from_bytes(raw[at : at + 8], "little")
    assert len(name) <= length, length
    target.write_bytes(raw[: at + 8] + name.ljust(length) + raw[at + 8 + length :])
    return target


def test_what_a_file_says_can_not_steer_the_terminal(shohin: Shohin, tiny: Path, tmp_path: Path) -> None:
    """Neither rich's markup, nor escape sequences, nor marks that turn the direction of writing."""
    for name in (b"[/x]", b"\x1b[2J", "\u202ea".encode()):
        model = renamed(tiny, tmp_path / "a[b].gguf", name)
        done = shohin("info", model)
        assert done.status == 0, done.err
        assert "\x1b" not in done.out and "\u202e" not in done.out
        shown = name.decode().encode("ascii", "backslashreplace").decode().replace("\x1b", "\\x1b")
        assert shown in done.out and "a[b].gguf" in "".join(done.out.split())
    done = shohin("info", tmp_path / "\x1b[2Jno.gguf")
    assert done.status == 1 and "\x1b" not in done.err and "\\x1b[2Jno.gguf" in done.err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_text_that_a_stream_can_not_carry_is_escaped(shohin: Shohin, tiny: Path, tmp_path: Path, encoding: str) -> None:
    env, odd = {"PYTHONIOENCODING": encoding}, tmp_path / os.fsdecode(b"caf\xc3\xa9\xff.gguf")
    odd.write_bytes(tiny.read_bytes())
    for command in (("info", odd), ("validate", odd), ("tokenize", odd, "-p", "é"), ("run", odd, "-p", "é", "-n", 2)):
        done = shohin(*command, env=env)
        assert done.status == 0 and "Traceback" not in done.err, done.err
        assert shohin(*command, "--json", env=env).json
    assert shohin("info", odd, "--json", env=env).json["file"] == str(odd)
    missing = shohin("info", tmp_path / os.fsdecode(b"\xe9\xff.gguf"), "--json", env=env)
    assert missing.status == 1 and missing.json["error"] and "Traceback" not in missing.err


def shell(redirected: str, *args: object) -> subprocess.CompletedProcess[bytes]:
    script = f'exec "$@" {redirected}'
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "shohin", *map(str, args)],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
def test_streams_that_are_closed_or_full(shohin: Shohin, tiny: Path) -> None:
    run = ("run", tiny, "-p", "x", "-n", 2, "--raw", "--temp", 0)
    full = ["> /dev/full"] if Path("/dev/full").exists() else []
    for redirected in (">&-", *full):
        for args in (run, (*run, "--json"), ("info", tiny), ("info",), ("--help",)):
            done = shell(redirected, *args)
            assert done.returncode == 1, (redirected, args, done)
            assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(b"shohin: "), done.stderr
    mute = shell("2>&-", *run)
    assert mute.returncode == 0 and mute.stdout == shell("", *run).stdout
    assert shell("2>&-", "info", "absent.gguf").returncode == 1
    deaf = shell("<&-", "run", tiny, "-n", 2)
    assert deaf.returncode == 1 and b"no prompt" in deaf.stderr
    assert shell("<&-", "chat", tiny).returncode == 0


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device")
def test_an_endless_prompt_is_refused(shohin: Shohin, tiny: Path) -> None:
    done = shell("< /dev/zero", "run", tiny, "-p", "-")
    assert done.returncode == 1 and b"64 MiB" in done.stderr


def test_a_block_that_the_input_ends_is_a_message(shohin: Shohin, tiny: Path) -> None:
    def turns(script: str) -> list[list[int]]:
        done = shohin("chat", tiny, "-n", 3, "--temp", 0, "--json", stdin=script)
        assert done.status == 0, done.err
        return [[(found := json.loads(line))["prompt_tokens"], *found["ids"]] for line in done.out.splitlines()]

    assert turns('"""\nthe\nring') == turns('"""\nthe\nring"""\n') != []
    assert turns('"""the\nri"""ng\n') == turns('"""the\nring"""\n'), "text after the quotes counts"


def test_bench_checks_the_context_before_it_writes(shohin: Shohin, tmp_path: Path) -> None:
    kept = tmp_path / "kept.gguf"
    done = shohin("bench", "--synthetic", "bonsai-1.7b", "--keep", kept, "-p", 32768, "-n", 2)
    assert done.status == 1 and "32768" in done.err and not kept.exists()


def test_packed_weights_are_kept_listed_and_removed(shohin: Shohin, tmp_path: Path) -> None:
    """With the model that comes with the package: tiny ones have no whole tile."""
    kept_there = {"SHOHIN_PACKED_CACHE": str(tmp_path / "packed")}
    flags = ("-p", "a", "-n", 4, "--temp", 0, "--raw", "--json")
    wanted = shohin("run", *flags).json["ids"]
    for _ in range(2):
        assert shohin("run", *flags, "--packed-cache", env=kept_there).json["ids"] == wanted
    listed = shohin("cache", "ls", "--json", env=kept_there).json
    assert listed.keys() == {"folder", "files", "bytes"}
    (kept,) = listed["files"]
    assert kept.keys() == {"name", "nbytes", "source", "version", "fault"}
    assert listed["bytes"] == kept["nbytes"] == (tmp_path / "packed" / kept["name"]).stat().st_size
    assert kept["name"] in shohin("cache", "ls", env=kept_there).out
    for wrong in (("rm",), ("rm", "--all", kept["name"]), ("rm", "../" + kept["name"])):
        done = shohin("cache", *wrong, "--json", env=kept_there)
        assert done.status == 1
        assert done.json["error"]["param"] == "name"
    assert shohin("cache", "rm", kept["name"], "--json", env=kept_there).json["removed"] == [kept]
    assert shohin("cache", "ls", "--json", env=kept_there).json["files"] == []
    assert shohin("cache", "rm", "--all", "--json", env=kept_there).json["removed"] == []
