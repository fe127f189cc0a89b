"""How files spell RoPE: GGUF keys, and the ``rope_scaling`` and ``rope_parameters`` of a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shohin.errors import BadFile, UnsupportedFormat
from shohin.models.keys import Keys
from shohin.models.rope import TURNS, Linear, Rope, Yarn, yarn_magnitude

KNOWN = ("none", "linear", "yarn")


@dataclass(frozen=True)
class Spelling:
    """The names that one kind of file uses for the same settings.

    neutral: name -> the only value accepted. ignored: names that change nothing. multiplies: whether ``magnitude``
    multiplies YaRN's own magnitude (llama.cpp) or replaces it (transformers).
    """

    type: str
    original: str
    magnitude: str
    beta_fast: str
    beta_slow: str
    multiplies: bool
    neutral: Mapping[str, float]
    ignored: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that is understood."""
        own = (self.type, "factor", self.original, self.magnitude, self.beta_fast, self.beta_slow)
        return (*own, *self.neutral, *self.ignored)


# llama.cpp ends up with attn_factor times 1 + 0.1 ln(factor); transformers takes attention_factor in its place.
GGUF = Spelling(
    type="type",
    original="original_context_length",
    magnitude="attn_factor",
    beta_fast="yarn_beta_fast",
    beta_slow="yarn_beta_slow",
    multiplies=True,
    neutral={"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0},
    ignored=("finetuned",),
)
CONFIG = Spelling(
    type="rope_type",
    original="original_max_position_embeddings",
    magnitude="attention_factor",
    beta_fast="beta_fast",
    beta_slow="beta_slow",
    multiplies=False,
    neutral={"truncate": True, "partial_rotary_factor": 1.0},
    ignored=("type", "rope_theta", "finetuned"),
)


def plain_rope(keys: Keys, name: str, rope: Callable[[float], Rope], default: float | None = None) -> Rope:
    """RoPE with the base under ``name`` (``default`` where it is absent), not scaled; BadFile for a base, or divisors,
    with which angles would not be finite.
    """
    made = rope(keys.positive(name, default))
    if not made.computable:
        raise keys.bad(name, "a base with which every angle is finite")
    return made


def rope_from_gguf(keys: Keys, rope: Rope) -> Rope:
    """``rope`` with the scaling that ``<architecture>.rope.scaling.*`` asks for."""
    old = keys.get("rope.scale_linear")
    if old not in (None, 0, 1):
        raise UnsupportedFormat(
            f"{keys.source}: {keys.shown('rope.scale_linear')} is the old spelling of a linear RoPE scaling; "
            f"convert the model again so that it says rope.scaling.type"
        )
    return _scaled(rope, Keys(keys.values, f"{keys.prefix}rope.scaling.", keys.source), GGUF)


def rope_from_config(config: Mapping[str, object], dim: int, pairing: str, source: str) -> Rope:
    """RoPE of a config.json: ``rope_theta`` with ``rope_scaling``, or both inside ``rope_parameters``.

    Where both forms stand they must agree; per-layer forms and unknown settings are refused by name.
    """
    found = {}
    for form in ("rope_parameters", "rope_scaling"):
        inside = config.get(form)
        if inside is None:
            continue
        if not isinstance(inside, Mapping):
            raise BadFile(f"{source}: {form} is {inside!r}; an object was expected")
        values = _one_type(inside, f"{source}: {form}")
        based = Keys(values if "rope_theta" in values else config, "", f"{source}: {form}")
        rope = plain_rope(based, "rope_theta", lambda base: Rope(base, dim, pairing))
        found[form] = _scaled(rope, Keys(values, "", f"{source}: {form}"), CONFIG)
    if not found:
        return plain_rope(Keys(config, "", source), "rope_theta", lambda base: Rope(base, dim, pairing))
    if len(set(found.values())) > 1:
        raise BadFile(f"{source}: rope_parameters and rope_scaling disagree: {found}; keep one of them")
    return next(iter(found.values()))


def _one_type(inside: Mapping[str, object], source: str) -> dict[str, object]:
    """The settings with ``rope_type`` filled in from its older name ``type``."""
    values = dict(inside)
    if "type" in values and values.setdefault("rope_type", values["type"]) != values["type"]:
        raise BadFile(f"{source}: type is {values['type']!r} and rope_type {values['rope_type']!r}; keep one of them")
    return values


def _scaled(rope: Rope, keys: Keys, spelling: Spelling) -> Rope:
    kind = _kind(keys, spelling)
    _refuse_unknown(keys, spelling)
    if kind == "none":
        return rope
    factor = keys.positive("factor")
    if factor < 1:
        raise keys.bad("factor", "a finite number of at least 1")
    scaling = Linear(factor) if kind == "linear" else _yarn(factor, rope, keys, spelling)
    scaled = Rope(rope.base, rope.dim, rope.pairing, scaling, rope.divisors)
    if not scaled.computable:
        raise keys.bad(spelling.magnitude, "a factor whose product with a cosine is a finite float32")
    return scaled


def _kind(keys: Keys, spelling: Spelling) -> str:
    if spelling.type not in keys:
        if keys.get("factor") in (None, 0, 1):
            return "none"
        raise BadFile(
            f"{keys.source}: {keys.shown('factor')} without {keys.prefix}{spelling.type}; "
            f"the kind of scaling must be said, one of {', '.join(KNOWN)}"
        )
    kind = keys.text(spelling.type)
    if kind == "default":
        return "none"
    if kind not in KNOWN:
        raise UnsupportedFormat(
            f"{keys.source}: {keys.shown(spelling.type)} is no RoPE scaling that shohin computes; "
            f"it computes {', '.join(KNOWN)}"
        )
    return kind


def _refuse_unknown(keys: Keys, spelling: Spelling) -> None:
    """A setting that is read and has no effect is worse than a refusal."""
    inside = [key.removeprefix(keys.prefix) for key in keys.values if key.startswith(keys.prefix)]
    for name in inside:
        value = keys.get(name)
        if name not in spelling.names:
            raise UnsupportedFormat(f"{keys.source}: {keys.shown(name)} is a RoPE setting that shohin does not know")
        if name in spelling.neutral and value not in (None, spelling.neutral[name]):
            raise UnsupportedFormat(
                f"{keys.source}: {keys.shown(name)} is not supported; only {spelling.neutral[name]!r} is"
            )


def _yarn(factor: float, rope: Rope, keys: Keys, spelling: Spelling) -> Yarn:
    if rope.base <= 1:
        raise BadFile(f"{keys.source}: YaRN needs a RoPE base above 1, and it is {rope.base}")
    given = keys.positive(spelling.magnitude) if keys.get(spelling.magnitude) is not None else None
    if given is not None and spelling.multiplies:
        given *= yarn_magnitude(factor)
    return Yarn(
        factor,
        keys.count(spelling.original),
        given,
        _turns(keys, spelling.beta_fast, Yarn.beta_fast),
        _turns(keys, spelling.beta_slow, Yarn.beta_slow),
    )


def _turns(keys: Keys, name: str, default: float) -> float:
    if keys.get(name) is None:
        return default
    turns = keys.positive(name)
    if not TURNS[0] <= turns <= TURNS[1]:
        raise keys.bad(name, f"a number of turns from {TURNS[0]:g} to {TURNS[1]:g}")
    return turns
