// Four pairs of codes of keys or values: a load of 8 bytes.
const SPAN = 4u;

fn four_pairs(w: vec2<u32>) -> array<vec2<f32>, SPAN> {
    return array<vec2<f32>, SPAN>(codes(w.x), codes(w.x >> 16u), codes(w.y), codes(w.y >> 16u));
}

fn stored_key(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return four_pairs(keys[row * (PAIRS / SPAN) + b]); }
fn stored_value(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return four_pairs(values[row * (PAIRS / SPAN) + b]); }
