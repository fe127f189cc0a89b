// Rounded pairs into the cache: a pair is a word.
fn write_key(row: u32, j: u32, pair: vec2<f32>) { keys[row * PAIRS + j] = to_halves(pair); }
fn write_value(row: u32, j: u32, pair: vec2<f32>) { values[row * PAIRS + j] = to_halves(pair); }
fn write_scales(row: u32, scales: vec2<f32>) {}
