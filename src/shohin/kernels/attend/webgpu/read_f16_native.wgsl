// Pairs of keys and values in the device's own float16.
fn stored_key(row: u32, j: u32) -> vec2<f32> { return vec2<f32>(keys[row * PAIRS + j]); }
fn stored_value(row: u32, j: u32) -> vec2<f32> { return vec2<f32>(values[row * PAIRS + j]); }
fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
