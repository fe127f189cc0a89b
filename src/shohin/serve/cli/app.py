"""The ``shohin`` command: reads arguments and environment, calls the Python interface, prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shohin.errors import BadRequest, ShohinError
from shohin.serve.cli import options as opt
from shohin.serve.cli.output import (
    abandon_output,
    emit,
    note,
    prepare_streams,
    progress_bar,
    read_prompt,
    report,
    visible,
)

if TYPE_CHECKING:
    from shohin.serve.cli.answer import Job

app = typer.Typer(
    name="shohin",
    help="Runs 1-bit and ternary language models.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def chosen(model: str | None, flag: str | None) -> str:
    """The model named by argument or flag, else the one that comes with the package; BadRequest for two."""
    from shohin.serve.loading import shipped_model

    if model is not None and flag is not None and model != flag:
        raise BadRequest(f"two models were given: {model!r} and -m {flag!r}", param="model")
    name = model or flag
    if name:
        return name
    note("shohin: no model was named; this is the small one that comes with the package (a stage, not an assistant)")
    return str(shipped_model())


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from importlib.metadata import version

        print(f"shohin {version('shohin')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Runs 1-bit and ternary language models."""


@app.command()
def run(
    model: opt.Model = None,
    model_flag: opt.ModelFlag = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt; - reads standard input.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    system: opt.System = None,
    think: opt.Think = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repeat_penalty: opt.RepeatPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    logit_bias: opt.LogitBias = None,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    ctx_size: opt.Context = None,
    kv: opt.Cache = "f16",
    device: opt.Device = "cpu",
    threads: opt.Threads = None,
    activations: opt.Activations = "int8",
    dialect: opt.Dialect = None,
    offline: opt.Offline = False,
    packed_cache: opt.PackedCache = False,
    profile: opt.Profile = None,
    as_json: opt.Json = False,
) -> None:
    """Answer one prompt."""
    from shohin.serve.cli.answer import answer

    flags = locals()
    name = chosen(model, model_flag)
    answer(name, read_prompt(prompt), asked(flags), raw=raw, system=system, think=think)


@app.command()
def chat(
    model: opt.Model = None,
    model_flag: opt.ModelFlag = None,
    system: opt.System = None,
    think: opt.Think = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repeat_penalty: opt.RepeatPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    logit_bias: opt.LogitBias = None,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    ctx_size: opt.Context = None,
    kv: opt.Cache = "f16",
    device: opt.Device = "cpu",
    threads: opt.Threads = None,
    activations: opt.Activations = "int8",
    dialect: opt.Dialect = None,
    offline: opt.Offline = False,
    packed_cache: opt.PackedCache = False,
    profile: opt.Profile = None,
    as_json: opt.Json = False,
) -> None:
    """Talk, turn by turn: /reset forgets, /exit ends, Ctrl-C stops an answer. With --json one object a turn."""
    from shohin.serve.cli.chat import chat as talk

    talk(chosen(model, model_flag), asked(locals()), system=system, think=think)


@app.command()
def info(
    model: opt.Model = None,
    model_flag: opt.ModelFlag = None,
    device: opt.Device = "cpu",
    threads: opt.Threads = None,
    dialect: opt.Dialect = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
    devices: opt.Devices = False,
) -> None:
    """Show what a model file holds; without a model, the devices and the formats that each runs."""
    from shohin.serve.cli.info import describe, show_devices, show_model
    from shohin.serve.loading import open_model
    from shohin.serve.named_device import named_device

    if model is None and model_flag is None:
        show_devices(as_json, devices)
        return
    weights = open_model(chosen(model, model_flag), dialect=dialect, offline=offline or None)
    show_model(describe(weights, named_device(device, threads)), as_json)


@app.command()
def validate(
    model: opt.Model = None,
    model_flag: opt.ModelFlag = None,
    dialect: opt.Dialect = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
) -> None:
    """Check a file through and through; exit status 1 and the first fault if it is not sound."""
    from shohin.serve.cli.validate import validate as check
    from shohin.serve.loading import open_model

    weights = open_model(chosen(model, model_flag), dialect=dialect, offline=offline or None)
    with progress_bar() as bar:
        found = check(weights, bar)
    if as_json:
        emit(found)
    else:
        print(f"{visible(found['file'])}: sound; {found['tensors']} tensors, {found['parameters']:,} weights")
        for line in found["notes"]:
            print(f"  {visible(line)}")


@app.command()
def tokenize(
    model: opt.Model = None,
    model_flag: opt.ModelFlag = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The text; - reads standard input.")] = None,
    special: Annotated[bool, typer.Option("--special", help="Read control tokens in the text as such.")] = False,
    ids_only: Annotated[bool, typer.Option("--ids", help="Print the ids on one line.")] = False,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
) -> None:
    """Show how a text is cut into tokens."""
    from shohin.formats.text import tokenizer_from_metadata
    from shohin.serve.loading import open_model

    weights = open_model(chosen(model, model_flag), offline=offline or None)
    tokenizer = tokenizer_from_metadata(weights.metadata, weights.source)
    text = read_prompt(prompt)
    ids = tokenizer.encode(text, special=special)
    pieces = [tokenizer.token_bytes(i).decode("utf-8", "backslashreplace") for i in ids]
    if as_json:
        emit({"ids": ids, "pieces": pieces, "count": len(ids)})
    elif ids_only:
        print(*ids)
    else:
        for i, piece in zip(ids, pieces, strict=True):
            print(f"{i:8d}  {piece!r}")


@app.command()
def bench(
    model: opt.Model = None,
    model_flag: opt.ModelFlag = None,
    synthetic: Annotated[
        str | None,
        typer.Option("--synthetic", help="bonsai-1.7b, bonsai-4b or bonsai-8b: real shapes, random weights."),
    ] = None,
    fmt: Annotated[
        str, typer.Option("--format", help="q1_0, pq2_0, q2_0, tq2_0, ptq1_0, or another that shohin info lists.")
    ] = "q1_0",
    keep: Annotated[str | None, typer.Option("--keep", metavar="FILE", help="Write the synthetic model here.")] = None,
    prompt_tokens: Annotated[int, typer.Option("-p", "--prompt-tokens")] = 512,
    generate_tokens: Annotated[int, typer.Option("-n", "--generate-tokens")] = 128,
    repeat: Annotated[int, typer.Option("-r", "--repeat", help="Runs; medians are reported.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of synthetic weights and prompt.")] = 0,
    kv: opt.Cache = "f16",
    device: opt.Device = "cpu",
    threads: opt.Threads = None,
    activations: opt.Activations = "int8",
    dialect: opt.Dialect = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
) -> None:
    """Measure prefill and decode beside what the memory allows."""
    from shohin.serve.benchmark import Load
    from shohin.serve.cli.bench import Setup
    from shohin.serve.cli.bench import bench as measure

    if synthetic is not None and model is not None:
        raise BadRequest("give a model or --synthetic, not both", param="synthetic")
    if keep is not None and synthetic is None:
        raise BadRequest("--keep writes a synthetic model; name one with --synthetic", param="keep")
    name = None if synthetic else chosen(model, model_flag)
    work = Load(prompt_tokens, generate_tokens, repeat, seed)
    load = loading(device, threads, activations, prompt_tokens + generate_tokens, kv, dialect, offline)
    measure(name, Setup(synthetic, fmt, keep, seed, work), load, as_json)


cache = typer.Typer(name="cache", help="The files that --packed-cache leaves behind.", no_args_is_help=True)
app.add_typer(cache)


@cache.command("ls")
def cache_ls(as_json: opt.Json = False) -> None:
    """List them, with the models they were packed from."""
    from shohin.serve.cli.cache import list_kept

    list_kept(as_json)


@cache.command("rm")
def cache_rm(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of them.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Remove files by the names that ls shows."""
    from shohin.serve.cli.cache import remove

    remove(names or [], everything, as_json)


def asked(flags: dict[str, Any]) -> Job:
    """What the flags that ``run`` and ``chat`` share ask for."""
    from shohin.serve.cli.answer import Job

    where = ("device", "threads", "activations", "ctx_size", "kv", "dialect", "offline", "packed_cache")
    return Job(
        loading=loading(*(flags[name] for name in where)),
        sampling=sampling(flags),
        profile=flags["profile"],
        as_json=flags["as_json"],
    )


def loading(
    device: str,
    threads: int | None,
    activations: str,
    context: int | None,
    kv: str,
    dialect: str | None,
    offline: bool,
    packed_cache: bool = False,
) -> dict[str, Any]:
    """The keyword arguments of ``shohin.load``."""
    if kv not in ("f16", "int8"):
        raise BadRequest(f"--kv is {kv!r}, expected f16 or int8", param="kv")
    return {
        "device": device,
        "threads": threads,
        "activations": activations,
        "context": context,
        "kv": kv,
        "dialect": dialect,
        "offline": True if offline else None,
        "packed_cache": True if packed_cache else None,
    }


def sampling(flags: dict[str, Any]) -> dict[str, Any]:
    """The sampling settings that were given; what was not given is left to the model's defaults."""
    names = {
        "max_tokens": "max_tokens",
        "temperature": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "repeat_penalty": "repetition_penalty",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "seed": "seed",
        "stop": "stop",
    }
    given = {ours: flags[flag] for flag, ours in names.items() if flags[flag] is not None}
    if flags["logit_bias"]:
        given["logit_bias"] = dict(bias(item) for item in flags["logit_bias"])
    return given


def bias(item: str) -> tuple[int, float]:
    """``ID=BIAS`` as a pair."""
    left, equals, right = item.partition("=")
    try:
        if not equals:
            raise ValueError
        return int(left), float(right)
    except ValueError:
        raise BadRequest(f"--logit-bias is {item!r}, expected ID=BIAS such as 42=-1.5", param="logit_bias") from None


def main() -> None:
    """Entry point. Exit status: 1 for our errors and the system's, 2 for wrong usage, 130 for Ctrl-C.

    A closed pipe ends quietly.
    """
    command = typer.main.get_command(app)
    try:
        prepare_streams()
        status = command(standalone_mode=False)
        sys.stdout.flush()
    except ShohinError as error:
        report(error, "--json" in sys.argv)
        status = 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            note(f"shohin: {error}")
        abandon_output()
        status = 1
    except (KeyboardInterrupt, typer.Abort):
        note("")
        status = 130
    except Exception as error:
        # Wrong usage comes as an exception of the parser's own, which knows how to show itself.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        if "--json" in sys.argv:
            emit({"error": {"message": str(error), "type": "usage", "param": None, "code": "usage"}})
        status = error.exit_code
    sys.exit(status if isinstance(status, int) else 0)
