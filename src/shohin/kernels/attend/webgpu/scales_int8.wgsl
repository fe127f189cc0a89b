// Codes and scales of an int8 cache.

// The signed bytes at bits 0 and 8.
fn codes(bits: u32) -> vec2<f32> {
    return vec2(f32(extractBits(i32(bits), 0u, 8u)), f32(extractBits(i32(bits), 8u, 8u)));
}

fn stored_key_scale(row: u32) -> f32 { return from_half(key_scales[row >> 1u] >> (16u * (row & 1u))); }
fn stored_value_scale(row: u32) -> f32 { return from_half(value_scales[row >> 1u] >> (16u * (row & 1u))); }
