// Four pairs of a row of keys or values, a float each.
const SPAN = 4u;

fn four_pairs(a: vec4<f32>, b: vec4<f32>) -> array<vec2<f32>, SPAN> {
    return array<vec2<f32>, SPAN>(a.xy, a.zw, b.xy, b.zw);
}

fn stored_key(row: u32, b: u32) -> array<vec2<f32>, SPAN> {
    let at = row * (PAIRS / 2u) + 2u * b;
    return four_pairs(keys[at], keys[at + 1u]);
}

fn stored_value(row: u32, b: u32) -> array<vec2<f32>, SPAN> {
    let at = row * (PAIRS / 2u) + 2u * b;
    return four_pairs(values[at], values[at + 1u]);
}

fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
