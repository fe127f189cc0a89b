"""Rows S0 and S3 on WebGPU: standalone layer, forward, products and pools keep what they promise on every device."""

from __future__ import annotations

import numpy as np
import packing
import pytest
import test_attend
import test_joint
import test_layers
import test_matmul
import test_pools

from conftest import open_webgpu
from shohin import kernels
from shohin.devices import Device
from shohin.devices.webgpu import WebGpu, choose
from shohin.errors import OutOfMemory
from shohin.formats.tensor import Tensor


class Opened(WebGpu):
    """The machine's first adapter: tests open further devices as they open cpu, with no arguments."""

    def __init__(self) -> None:
        super().__init__(choose(), open_webgpu("plain").tiers[-1])


@pytest.fixture
def device() -> Device:
    """A device of its own, with pools that are still empty, at the highest tier."""
    return Opened()


weight = test_pools.weight

# One layer and the whole forward.
test_one_layer = test_layers.test_one_layer
test_forward_against_float64 = test_layers.test_forward_against_float64
test_prefill_equals_single_steps_and_any_chunks = test_layers.test_prefill_equals_single_steps_and_any_chunks
test_what_is_asked_for_comes_back_and_nothing_else = test_layers.test_what_is_asked_for_comes_back_and_nothing_else
test_verify_needs_a_whole_tail = test_layers.test_verify_needs_a_whole_tail
test_checks_come_in_order_and_before_any_write = test_layers.test_checks_come_in_order_and_before_any_write
test_longer_arrays_are_accepted_and_their_prefix_used = (
    test_layers.test_longer_arrays_are_accepted_and_their_prefix_used
)
test_rollback_reset_and_two_sequences = test_layers.test_rollback_reset_and_two_sequences
test_nothing_is_allocated_per_token_and_scratch_does_not_grow = (
    test_layers.test_nothing_is_allocated_per_token_and_scratch_does_not_grow
)
test_a_profile_times_every_layer_and_changes_nothing = test_layers.test_a_profile_times_every_layer_and_changes_nothing
test_broken_logits_are_reported_for_their_row_alone = test_layers.test_broken_logits_are_reported_for_their_row_alone
test_weights_that_do_not_fit_are_refused_when_the_stack_is_placed = (
    test_layers.test_weights_that_do_not_fit_are_refused_when_the_stack_is_placed
)
test_models_without_head_norms = test_layers.test_models_without_head_norms

# The cache.
test_positions_and_pages_outside_are_refused_before_anything_is_written = (
    test_attend.test_positions_and_pages_outside_are_refused_before_anything_is_written
)
test_a_cache_of_other_dimensions_is_refused_and_keeps_its_content = (
    test_attend.test_a_cache_of_other_dimensions_is_refused_and_keeps_its_content
)

# Products.
test_exact_product_in_every_format = test_matmul.test_exact_product_in_every_format
test_gemv_is_a_row_of_gemm_and_qkv_is_gemv_side_by_side = (
    test_matmul.test_gemv_is_a_row_of_gemm_and_qkv_is_gemv_side_by_side
)
test_f32_gemm_takes_any_k = test_matmul.test_f32_gemm_takes_any_k
test_int8_product_in_every_format = test_matmul.test_int8_product_in_every_format
test_float_weights_are_never_quantised = test_matmul.test_float_weights_are_never_quantised
test_quantiser_rounds_half_to_even = test_matmul.test_quantiser_rounds_half_to_even
test_quantiser_silent_and_broken_groups = test_matmul.test_quantiser_silent_and_broken_groups
test_linear_add_keeps_the_residual = test_matmul.test_linear_add_keeps_the_residual
test_norm_linear = test_matmul.test_norm_linear
test_norm_swiglu = test_matmul.test_norm_swiglu
test_ffn_phase_with_an_output_that_is_not_square = test_matmul.test_ffn_phase_with_an_output_that_is_not_square
test_gates_of_the_contract_at_image_widths = test_matmul.test_gates_of_the_contract_at_image_widths
test_rows_that_workers_do_not_divide = test_matmul.test_rows_that_workers_do_not_divide

# Handles, pools and counters.
test_gemv_checks_x_then_out_and_takes_longer_arrays = test_pools.test_gemv_checks_x_then_out_and_takes_longer_arrays
test_arrays_of_the_wrong_kind_are_refused_not_converted = (
    test_pools.test_arrays_of_the_wrong_kind_are_refused_not_converted
)
test_gemm_checks_in_order_and_exactly = test_pools.test_gemm_checks_in_order_and_exactly
test_sizes_that_no_device_indexes = test_pools.test_sizes_that_no_device_indexes
test_empty_products = test_pools.test_empty_products
test_a_weight_carries_what_it_is = test_pools.test_a_weight_carries_what_it_is
test_handles_are_not_looked_up_by_name_or_address = test_pools.test_handles_are_not_looked_up_by_name_or_address
test_bytes_that_do_not_fit_the_shape_are_refused = test_pools.test_bytes_that_do_not_fit_the_shape_are_refused
test_handles_are_owned_and_counted = test_pools.test_handles_are_owned_and_counted
test_gemm_pool_grows_each_buffer_on_its_own = test_pools.test_gemm_pool_grows_each_buffer_on_its_own
test_old_values_in_the_pool_never_reach_a_result = test_pools.test_old_values_in_the_pool_never_reach_a_result
test_concurrent_callers_wait_and_never_mix = test_pools.test_concurrent_callers_wait_and_never_mix
test_ffn_checks_in_order_and_writes_nothing = test_pools.test_ffn_checks_in_order_and_writes_nothing
test_an_output_that_was_not_fetched_is_named = test_pools.test_an_output_that_was_not_fetched_is_named
test_shapes_are_checked_in_order = test_joint.test_shapes_are_checked_in_order


@pytest.mark.row("H.23", "SC.3", "SC.4", "SC.5")
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "TQ2_0_G128", "Q4_1", "Q8_0", "F16", "F32"])
def test_blocks_may_lie_at_any_address(device: Device, rng: np.random.Generator, fmt: str) -> None:
    """An odd number of odd-sized blocks, mapped from an odd address: the same result as from aligned memory."""
    k = 3 * packing.FORMATS[fmt].block if packing.FORMATS[fmt].block > 1 else 99
    aligned = packing.pack(device, "w", fmt, rng.standard_normal((5, k)))
    memory = np.zeros(aligned.raw.size + 64, np.uint8)
    start = 1 - memory.ctypes.data % 2
    data = memory[start : start + aligned.raw.size]
    data[:] = aligned.raw.reshape(-1)
    odd = device.pack(Tensor("w", (5, k), packing.FORMATS[fmt], data))
    x = rng.standard_normal((2, k)).astype(np.float32)
    for mode in ("exact", "int8"):
        want = kernels.gemm(device, aligned.weight, x, activations=mode)
        assert want.any()
        np.testing.assert_array_equal(kernels.gemm(device, odd, x, activations=mode), want)


@pytest.mark.row("S3.46", "S3.1")
def test_adapter_and_tier_are_named(device: WebGpu) -> None:
    assert device.kernels == f"{device.adapter}, {device.tier}" and device.tier in device.tiers
    assert open_webgpu("plain").kernels.endswith(", plain")


@pytest.mark.row("SC.2", "S3.4")
def test_a_request_larger_than_a_binding_says_so(device: Device) -> None:
    before = device.allocations
    with pytest.raises(OutOfMemory, match="binds at most"):
        device.buffer("huge", (2**31, 2**31))
    assert device.allocations == before


@pytest.mark.row("H.24", "H.19", "S3.21")
@pytest.mark.parametrize("succeed", [0, 1, 2, 3])
def test_failed_growth_keeps_the_old_set(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, succeed: int
) -> None:
    shape, large = kernels.JointShape(2, 8, 8), kernels.JointShape(2, 64, 8)
    parts = test_joint.operands(rng, shape)
    want = kernels.joint_attention(device, shape, parts, pooled=True)
    pool = device.pool("attention")
    memory, left = device.memory, [succeed]

    def failing(nbytes: int, what: str) -> object:
        if left[0] == 0:
            raise OutOfMemory("no more")
        left[0] -= 1
        return memory(nbytes, what)

    monkeypatch.setattr(device, "memory", failing)
    with pytest.raises(OutOfMemory):
        kernels.joint_attention(device, large, test_joint.operands(rng, large), pooled=True)
    assert pool.allocations == (4 if succeed < 3 else 7), "q, k, v count together or not at all"
    assert pool.capacity("out") == shape.count
    monkeypatch.undo()
    np.testing.assert_array_equal(kernels.joint_attention(device, shape, parts, pooled=True), want)
    kernels.joint_attention(device, large, test_joint.operands(rng, large), pooled=True)
    assert pool.allocations == 8
