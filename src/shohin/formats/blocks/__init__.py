"""The table of block formats: by name, by GGUF type id, and the names of types that shohin does not run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shohin.errors import UnsupportedFormat
from shohin.formats.blocks import kquants, legacy, onebit, plain, ternary, twobit
from shohin.formats.blocks.base import BlockFormat, Bytes, Codes, Floats
from shohin.formats.blocks.scaled import ScaledFormat

__all__ = [
    "DIALECTS_OF_42",
    "FORMATS",
    "BlockFormat",
    "Bytes",
    "Codes",
    "Floats",
    "ScaledFormat",
    "by_name",
    "by_type_id",
    "type_name",
]

_ROWS: tuple[BlockFormat, ...] = (
    plain.F32(),
    plain.F16(),
    plain.BF16(),
    onebit.Q1_0(),
    twobit.Q2_0(),
    twobit.Q2_0_G128(),
    twobit.TQ2_0_G128(),
    twobit.PQ2_0(),
    ternary.PTQ1_0(),
    ternary.TQ1_0(),
    ternary.TQ2_0(),
    legacy.Q4_0(),
    legacy.Q4_1(),
    legacy.Q5_0(),
    legacy.Q5_1(),
    legacy.Q8_0(),
    kquants.Q2_K(),
    kquants.Q3_K(),
    kquants.Q4_K(),
    kquants.Q5_K(),
    kquants.Q6_K(),
    kquants.Q8_K(),
)

FORMATS: Mapping[str, BlockFormat] = MappingProxyType({row.name: row for row in _ROWS})

# The layouts that share type id 42; nothing in a file says which one it means.
DIALECTS_OF_42: tuple[BlockFormat, ...] = tuple(row for row in _ROWS if row.type_id == 42)

_BY_ID = {row.type_id: row for row in _ROWS if row.type_id != 42}

# ggml's other types, present and past, and the two that OxiBonsai added: only their names, for messages.
_FOREIGN = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
    39: "MXFP4", 40: "NVFP4", 43: "FP8_E4M3", 44: "FP8_E5M2",
}  # fmt: skip


def by_name(name: str) -> BlockFormat:
    """The format of that name in any case ("q1_0"); UnsupportedFormat lists the names there are."""
    wanted = name.upper()
    found = FORMATS.get(wanted)
    if found is None:
        known = "a type that shohin does not run" if wanted in _FOREIGN.values() else "no format that shohin knows"
        raise UnsupportedFormat(f"{name!r} is {known}; formats: {', '.join(FORMATS)}")
    return found


def by_type_id(type_id: int) -> BlockFormat:
    """The format of a GGUF type id; UnsupportedFormat names the type, and for 42 the layouts to choose from."""
    found = _BY_ID.get(type_id)
    if found is None:
        if type_id == 42:
            names = ", ".join(row.name for row in DIALECTS_OF_42)
            raise UnsupportedFormat(f"tensor type 42 has {len(DIALECTS_OF_42)} layouts: {names}; choose one by name")
        names = ", ".join(f"{row.name} ({row.type_id})" for row in _ROWS)
        raise UnsupportedFormat(f"tensor type {type_name(type_id)} is not one that shohin runs; it runs {names}")
    return found


def type_name(type_id: int) -> str:
    """What messages call a type id: "NVFP4 (40)", or "77 (unknown)"."""
    if type_id == 42:
        return "Q2_0 (42)"
    name = _BY_ID[type_id].name if type_id in _BY_ID else _FOREIGN.get(type_id)
    return f"{type_id} (unknown)" if name is None else f"{name} ({type_id})"
