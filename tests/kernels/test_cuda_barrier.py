"""``barrier``: phases that only wait, of which the measured floor of a chain consists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import REAL, emulated_cuda, real_gpu
from opening import host

from shohin.devices import Device, Step, Tape
from shohin.devices.cuda import Cuda
from shohin.errors import BadShape
from shohin.kernels.barrier import barrier


def recorded(device: Device, count: int, inside: bool) -> Tape:
    tape = device.recorder("floor", 1)
    met = device.buffer("met", (1, 1), np.int32)
    barrier(tape, met, count, inside=inside)
    tape.output("met", met, "all")
    return tape.finish()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_phase_is_passed_at_every_play(inside: bool, count: int) -> None:
    """The emulator runs blocks one after the other, so there only one can meet."""
    cuda = Cuda(real_gpu()) if REAL else emulated_cuda(multiprocessors=1)
    for device in (host(), cuda):
        tape = recorded(device, count, inside)
        for _ in range(3):
            assert tape.play(Step.rows_only(1), ("met",))["met"].tolist() == [[count]]


def test_a_phase_is_a_launch_on_every_multiprocessor() -> None:
    from shohin.kernels.barrier.cuda import launches

    cuda = emulated_cuda()
    call = recorded(host(), 5, inside=False).calls[0]
    target = cuda.target(1, 1)
    assert [launch.grid[0] for launch in launches(call, target)] == [target.multiprocessors] * 5
    assert len(launches(replace(call, op=replace(call.op, inside=True)), target)) == 1


def test_what_is_refused() -> None:
    device = host()
    tape = device.recorder("floor", 1)
    with pytest.raises(BadShape, match="0 phases"):
        barrier(tape, device.buffer("met", (1, 1), np.int32), 0)
    with pytest.raises(BadShape, match="met is float"):
        barrier(tape, device.buffer("met", (1, 1)), 1)
    with pytest.raises(BadShape, match=r"\[1, 1\]"):
        barrier(tape, device.buffer("met", (2, 1), np.int32), 1)
