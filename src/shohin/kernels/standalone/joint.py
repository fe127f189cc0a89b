"""Joint attention in three residencies: own buffers, pooled buffers, and operands that stay on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from shohin.devices import Buffer, Device, Pool, Step, Tape
from shohin.errors import BadShape, BadState
from shohin.kernels.joint_attention.op import JointAttention
from shohin.kernels.joint_attention.op import joint_attention as record_joint
from shohin.kernels.standalone.arrays import fill, product, target, values

Array = NDArray[Any]
WHAT = "joint_attention"


@dataclass(frozen=True)
class JointShape:
    """H heads, S tokens, D values a head. q, k and v are head-major [H, S, D], the result is token-major [S, H * D].

    S has no cap; D is at most 256, of any remainder (S3.24, T.9, T.18: one kernel, one rule). BadShape otherwise.

    mode: ``exact``; or ``fast``, which permits a device to round q, k, v and the softmax weights to float16 (sums stay
    float32): each weight is then off by about 2^-10 times |q| . |k| / sqrt(D), and magnitudes above 65,504 become
    infinite. ``host`` and ``cpu`` compute the same in both. BadRequest for any other mode.
    """

    heads: int
    tokens: int
    dim: int
    mode: str = "exact"

    def __post_init__(self) -> None:
        JointAttention(self.heads, self.tokens, self.dim, self.mode)
        product(WHAT, self.heads, self.tokens, self.dim)

    @property
    def count(self) -> int:
        """Values in each of q, k, v and the result."""
        return self.heads * self.tokens * self.dim


def joint_attention(
    device: Device,
    shape: JointShape,
    operands: tuple[Array, Array, Array],
    out: Array | None = None,
    *,
    pooled: bool = False,
) -> Array:
    """out[s, h] = softmax(q[h, s] . k[h]^T / sqrt(D)) . v[h], non-causal, over all S keys (S3.23).

    operands: (q, k, v), RoPE already applied, each at least ``shape.count`` values; out alike (a new [S, H * D] without
    one). Longer arrays are fine and only their first values count. BadShape, in this order: q, k, v, out.

    Each call uploads, runs and downloads: with four fresh buffers, or with those of ``device.pool("attention")``
    (``pooled``), whose ``allocations`` counts +4 when first filled, +3 when q, k and v grow, +1 when out grows; the
    device stays locked throughout. The result is the same bit for bit (S3.26, S3.27, S3.31, S3.32).
    """
    parts = _operands(device, shape, operands)
    result = target(f"{WHAT}: out", out, (shape.tokens, shape.heads * shape.dim), device)
    with device.lock:
        buffers = _take(device.pool("attention") if pooled else Pool(device, "joint_attention"), shape)
        _upload(device, buffers, parts)
        return fill(result, _record(device, shape, buffers).play(Step.rows_only(1), ("out",))["out"])


class ResidentJoint:
    """q, k and v that stay on the device: prepare once, dispatch as often as wanted, download (S3.28 to S3.30).

    An object owns its pool, so nobody else's call can change what was prepared; ``pool.allocations`` counts as above.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = Pool(device, "resident_attention")
        self._shape: JointShape | None = None
        self._tape: Tape | None = None
        self._done = False

    def prepare(self, shape: JointShape, operands: tuple[Array, Array, Array]) -> None:
        """Upload (q, k, v), checked as by ``joint_attention``; an earlier preparation and its result are gone."""
        parts = _operands(self.device, shape, operands)
        with self.device.lock:
            buffers = _take(self.pool, shape)
            self._done = False
            _upload(self.device, buffers, parts)
            self._tape, self._shape = _record(self.device, shape, buffers), shape

    def dispatch(self) -> None:
        """Run on the prepared data, with no copies; BadState before ``prepare``."""
        if self._tape is None:
            raise BadState(f"{WHAT}: dispatch before prepare; nothing has been uploaded")
        with self.device.lock:
            self._tape.play(Step.rows_only(1))
            self._done = True

    def download(self, out: Array | None = None) -> Array:
        """The result of the last dispatch, [S, H * D]; BadState when none has run since the last ``prepare`` (H.17)."""
        with self.device.lock:
            if self._shape is None or not self._done:
                raise BadState(f"{WHAT}: download before a dispatch of what was last prepared")
            shape = self._shape
            result = target(f"{WHAT}: out", out, (shape.tokens, shape.heads * shape.dim), self.device)
            (sink,) = self.pool.take((shape.tokens, shape.heads * shape.dim), "out")
            return fill(result, self.device.read(sink))


def _operands(device: Device, shape: JointShape, operands: tuple[Array, Array, Array]) -> list[Array]:
    if len(operands) != 3:
        raise BadShape(f"{WHAT}: operands must be (q, k, v), got {len(operands)} arrays")
    return [values(f"{WHAT}: {name}", a, shape.count, device) for name, a in zip("qkv", operands, strict=True)]


def _take(pool: Pool, shape: JointShape) -> tuple[Buffer, ...]:
    rows = shape.heads * shape.tokens
    return (
        *pool.take((rows, shape.dim), "q", "k", "v"),
        *pool.take((shape.tokens, shape.heads * shape.dim), "out"),
    )


def _upload(device: Device, buffers: tuple[Buffer, ...], parts: list[Array]) -> None:
    for buffer, part in zip(buffers, parts, strict=False):
        device.write(buffer, part.reshape(buffer.shape))


def _record(device: Device, shape: JointShape, buffers: tuple[Buffer, ...]) -> Tape:
    q, k, v, out = buffers
    tape = device.recorder(WHAT, 1)
    record_joint(tape, q, k, v, out, heads=shape.heads, mode=shape.mode)
    tape.output("out", out, "all")
    return tape.finish()
