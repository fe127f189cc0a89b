// Pairs of keys and values, a float each.
fn stored_key(row: u32, j: u32) -> vec2<f32> {
    let at = row * DIM + 2u * j;
    return vec2(keys[at], keys[at + 1u]);
}

fn stored_value(row: u32, j: u32) -> vec2<f32> {
    let at = row * DIM + 2u * j;
    return vec2(values[at], values[at + 1u]);
}

fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
