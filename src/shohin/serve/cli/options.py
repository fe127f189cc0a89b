"""The flags that several commands share, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer


def _default(ctx: typer.Context, name: str) -> bool:
    """Whether a setting comes from the environment, where it is only a default for what the command line leaves open.

    Settings of the command line are read first, then the others in the order in which a command lists them.
    """
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _model(ctx: typer.Context, value: str | None) -> str | None:
    return None if ctx.params.get("model") is not None and _default(ctx, "model_flag") else value


def _threads(ctx: typer.Context, value: int | None) -> int | None:
    return None if ctx.params.get("device", "cpu") != "cpu" and _default(ctx, "threads") else value


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="A .gguf file, a folder that holds one, or a Hugging Face id (org/repo, org/repo:QUANT).",
        show_default=False,
    ),
]
ModelFlag = Annotated[
    str | None,
    typer.Option(
        "-m", "--model", envvar="SHOHIN_MODEL", callback=_model, help="The same as MODEL.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        envvar="SHOHIN_DEVICE",
        help="cpu, cuda, webgpu (cuda:1, webgpu:NAME), or host (NumPy, for checking).",
    ),
]
Devices = Annotated[bool, typer.Option("--devices", help="Look for GPUs, too, and show what each runs.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        envvar="SHOHIN_THREADS",
        callback=_threads,
        help="Worker threads; physical cores if not given.",
        show_default=False,
    ),
]
Activations = Annotated[str, typer.Option("--activations", help="int8, or exact (float32 inputs; slower).")]
Context = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx-size",
        help="Tokens of context; the smaller of 4096 and the model's own if not given.",
        show_default=False,
    ),
]
Cache = Annotated[str, typer.Option("--kv", help="Cache type: f16 or int8.")]
Dialect = Annotated[
    str | None,
    typer.Option("--dialect", help="Layout of type-42 tensors: q2_0, q2_0_g128, tq2_0_g128.", show_default=False),
]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network; HF_HUB_OFFLINE=1 does the same.")]
PackedCache = Annotated[
    bool,
    typer.Option(
        "--packed-cache",
        help="Map packed weights that an earlier start left, and leave them for the next; see shohin cache.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "-n", "--max-tokens", help="Most tokens to generate; as many as fit if not given.", show_default=False
    ),
]
Temperature = Annotated[float | None, typer.Option("--temp", "--temperature", help="0 is greedy.", show_default=False)]
TopK = Annotated[int | None, typer.Option("--top-k", help="0 or -1 is off.", show_default=False)]
TopP = Annotated[float | None, typer.Option("--top-p", show_default=False)]
MinP = Annotated[float | None, typer.Option("--min-p", show_default=False)]
RepeatPenalty = Annotated[
    float | None, typer.Option("--repeat-penalty", "--repetition-penalty", help="1 is off.", show_default=False)
]
PresencePenalty = Annotated[float | None, typer.Option("--presence-penalty", show_default=False)]
FrequencyPenalty = Annotated[float | None, typer.Option("--frequency-penalty", show_default=False)]
Seed = Annotated[int | None, typer.Option("--seed", help="-1 or none is random.", show_default=False)]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End the answer before this text; may be given again.", show_default=False),
]
LogitBias = Annotated[
    list[str] | None, typer.Option("--logit-bias", help="ID=BIAS, may be given again.", show_default=False)
]
System = Annotated[
    str | None, typer.Option("-s", "--system", "--system-prompt", help="System message.", show_default=False)
]
Think = Annotated[
    bool | None,
    typer.Option("--think/--no-think", help="Ask the template for thinking or none.", show_default=False),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", envvar="SHOHIN_PROFILE", help="token or layer: timings on standard error.", show_default=False
    ),
]
