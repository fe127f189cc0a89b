// Pairs into the cache.
fn write_key(row: u32, j: u32, pair: vec2<f32>) {
    let at = row * DIM + 2u * j;
    keys[at] = pair.x;
    keys[at + 1u] = pair.y;
}

fn write_value(row: u32, j: u32, pair: vec2<f32>) {
    let at = row * DIM + 2u * j;
    values[at] = pair.x;
    values[at + 1u] = pair.y;
}

fn write_scales(row: u32, scales: vec2<f32>) {}
