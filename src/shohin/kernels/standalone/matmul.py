"""Matrix times vector, matrix times matrix, and the fused projections of one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from shohin.devices import Device, Step, Weight
from shohin.errors import BadShape
from shohin.kernels.gemm.op import gemm as record_gemm
from shohin.kernels.linear import check_activations, check_matrix
from shohin.kernels.norm_linear.op import norm_linear
from shohin.kernels.standalone.arrays import fill, product, target, values

Array = NDArray[Any]
POOL = "gemm"


def gemv(device: Device, weight: Weight, x: Array, out: Array | None = None, *, activations: str = "exact") -> Array:
    """out[r] = sum over c of weight[r, c] * x[c], for any format (S3.11, S3.12). Blocking; fresh buffers per call.

    x holds at least K values, out at least N (a new array [N] without one); longer arrays are fine and only their first
    values count. BadShape, in this order: weight, x, out. Returns out.
    """
    what = "gemv"
    n, k = _matrix(what, weight, device, activations)
    vector = values(f"{what}: x", x, k, device)
    result = target(f"{what}: out", out, (n,), device)
    source, sink = device.buffer("gemv.x", (1, k)), device.buffer("gemv.out", (1, n))
    tape = device.recorder(what, 1)
    record_gemm(tape, source, weight, sink, activations=activations)
    tape.output("out", sink, "rows")
    with device.lock:
        device.write(source, vector[None])
        return fill(result, tape.finish().play(Step.rows_only(1), ("out",))["out"])


def qkv(
    device: Device,
    weights: Weight | Sequence[Weight],
    x: Array,
    out: Array | None = None,
    *,
    activations: str = "exact",
) -> Array:
    """The Q, K and V rows of one vector side by side (S3.13): ``gemv`` of one fused weight, or of several in order.

    The formats may differ. Checks and lengths as in ``gemv``, N being the sum over the weights.
    """
    what = "qkv"
    parts = (weights,) if isinstance(weights, Weight) else tuple(weights)
    if not parts:
        raise BadShape(f"{what}: no weight was given")
    k = parts[0].shape[-1]
    n = 0
    for part in parts:
        rows, columns = _matrix(what, part, device, activations)
        if columns != k:
            raise BadShape(f"{what}: weight {part.name!r} has {columns} columns, {parts[0].name!r} has {k}")
        n += rows
    vector = values(f"{what}: x", x, k, device)
    result = target(f"{what}: out", out, (n,), device)
    source, sink = device.buffer("qkv.x", (1, k)), device.buffer("qkv.out", (1, n))
    tape = device.recorder(what, 1)
    norm_linear(tape, source, None, parts, sink, eps=1.0, activations=activations)  # no norm, so eps is not used
    tape.output("out", sink, "rows")
    with device.lock:
        device.write(source, vector[None])
        return fill(result, tape.finish().play(Step.rows_only(1), ("out",))["out"])


def gemm(device: Device, weight: Weight, x: Array, out: Array | None = None, *, activations: str = "exact") -> Array:
    """out[m, n] = sum over k of x[m, k] * weight[n, k], all row-major, any M (S3.14, I.1).

    x is [M, K], out exactly M * N values (a new [M, N] without one). The two buffers on the device come from the pool
    ``device.pool("gemm")``, whose ``allocations`` counts +2 when it is first filled and +1 per buffer that grows; the
    device is locked from upload to download, and a larger buffer changes no bit of the result (S3.19 to S3.21).

    BadShape, in this order: K of the weight not in whole blocks; M * K too large; x not M * K values; M * N too large;
    out not M * N values. M = 0 succeeds and touches nothing. A weight without columns can't be packed (H.8).
    """
    return _matmul("gemm", device, weight, x, out, activations)


def gemm_f32(device: Device, weight: Weight, x: Array, out: Array | None = None) -> Array:
    """``gemm`` for a weight in F32, any K (S3.17, I.2); BadShape for a weight in another format, checked last.

    Shares the pool, and so the counter, of ``gemm`` (T.4).
    """
    return _matmul("gemm_f32", device, weight, x, out, "exact")


def _matmul(what: str, device: Device, weight: Weight, x: Array, out: Array | None, activations: str) -> Array:
    n, k = _matrix(what, weight, device, activations)
    m = _rows(what, x, k)
    source_values = values(f"{what}: x", x, product(f"{what}: x", m, k), device, exact=True)
    product(f"{what}: out", m, n)
    result = target(f"{what}: out", out, (m, n), device, exact=True)
    if what == "gemm_f32" and weight.format.name != "F32":
        raise BadShape(f"{what}: weight {weight.name!r} is {weight.format.name}, F32 was expected; use gemm")
    if m == 0:
        return result
    with device.lock:
        (source,) = device.pool(POOL).take((m, k), "x")
        (sink,) = device.pool(POOL).take((m, n), "out")
        tape = device.recorder(what, m)
        record_gemm(tape, source, weight, sink, activations=activations)
        tape.output("out", sink, "rows")
        device.write(source, source_values.reshape(m, k))
        return fill(result, tape.finish().play(Step.rows_only(m), ("out",))["out"])


def _matrix(what: str, weight: Weight, device: Device, activations: str) -> tuple[int, int]:
    """(N, K) of a weight that may be multiplied on this device."""
    check_activations(activations)
    if len(weight.shape) != 2:
        raise BadShape(f"{what}: weight {weight.name!r} has shape {list(weight.shape)}, a matrix was expected")
    return check_matrix(what, weight, None, weight.shape[1], device), weight.shape[1]


def _rows(what: str, x: Array, k: int) -> int:
    """M of x [M, K]; BadShape for another number of columns."""
    if getattr(x, "ndim", 0) != 2 or x.shape[1] != k:
        raise BadShape(f"{what}: x must be [M, {k}], got {list(getattr(x, 'shape', ()))}")
    return int(x.shape[0])
