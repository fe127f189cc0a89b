// A pair of codes of keys or values. A pair never straddles words, because heads are even.
const SPAN = 1u;

fn stored_key(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    let at = row * PAIRS + j;
    return array<vec2<f32>, SPAN>(codes(keys[at >> 1u] >> (16u * (at & 1u))));
}

fn stored_value(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    let at = row * PAIRS + j;
    return array<vec2<f32>, SPAN>(codes(values[at >> 1u] >> (16u * (at & 1u))));
}
