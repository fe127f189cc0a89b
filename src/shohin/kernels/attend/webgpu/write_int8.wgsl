// Codes and scales into halves of words. The other half may be another row's, written by another workgroup at the same time:
// each clears and sets its own bits, and no order of these changes the outcome.
fn half_of_codes(pair: vec2<f32>) -> u32 { return (u32(i32(pair.x)) & 0xffu) | ((u32(i32(pair.y)) & 0xffu) << 8u); }

fn write_key(row: u32, j: u32, pair: vec2<f32>) {
    let at = row * PAIRS + j;
    let shift = 16u * (at & 1u);
    atomicAnd(&keys[at >> 1u], 0xffff0000u >> shift);
    atomicOr(&keys[at >> 1u], half_of_codes(pair) << shift);
}

fn write_value(row: u32, j: u32, pair: vec2<f32>) {
    let at = row * PAIRS + j;
    let shift = 16u * (at & 1u);
    atomicAnd(&values[at >> 1u], 0xffff0000u >> shift);
    atomicOr(&values[at >> 1u], half_of_codes(pair) << shift);
}

fn write_scales(row: u32, scales: vec2<f32>) {
    let shift = 16u * (row & 1u);
    atomicAnd(&key_scales[row >> 1u], 0xffff0000u >> shift);
    atomicOr(&key_scales[row >> 1u], to_half(scales.x) << shift);
    atomicAnd(&value_scales[row >> 1u], 0xffff0000u >> shift);
    atomicOr(&value_scales[row >> 1u], to_half(scales.y) << shift);
}
