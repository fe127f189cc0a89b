// Codes of keys and values, four a word; a pair never straddles words, because heads are even.
fn codes(word: u32, at: u32) -> vec2<f32> {
    let half = word >> (16u * (at & 1u));
    return vec2(f32(extractBits(i32(half), 0u, 8u)), f32(extractBits(i32(half), 8u, 8u)));
}

fn stored_key(row: u32, j: u32) -> vec2<f32> {
    let at = row * PAIRS + j;
    return codes(keys[at >> 1u], at);
}

fn stored_value(row: u32, j: u32) -> vec2<f32> {
    let at = row * PAIRS + j;
    return codes(values[at >> 1u], at);
}

fn stored_key_scale(row: u32) -> f32 { return from_half(key_scales[row >> 1u] >> (16u * (row & 1u))); }
fn stored_value_scale(row: u32) -> f32 { return from_half(value_scales[row >> 1u] >> (16u * (row & 1u))); }
