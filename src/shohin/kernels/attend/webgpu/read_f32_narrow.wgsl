// A pair of a row of keys or values, a float each.
const SPAN = 1u;

fn stored_key(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    let at = row * DIM + 2u * j;
    return array<vec2<f32>, SPAN>(vec2(keys[at], keys[at + 1u]));
}

fn stored_value(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    let at = row * DIM + 2u * j;
    return array<vec2<f32>, SPAN>(vec2(values[at], values[at + 1u]));
}

fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
