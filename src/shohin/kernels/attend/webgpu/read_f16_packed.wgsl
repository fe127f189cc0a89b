// Pairs of keys and values, two halves a word.
fn stored_key(row: u32, j: u32) -> vec2<f32> { return unpack2x16float(keys[row * PAIRS + j]); }
fn stored_value(row: u32, j: u32) -> vec2<f32> { return unpack2x16float(values[row * PAIRS + j]); }
fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
