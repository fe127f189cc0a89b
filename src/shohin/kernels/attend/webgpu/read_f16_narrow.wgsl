// A pair of a row of keys or values, two halves a word, where four pairs would straddle rows.
const SPAN = 1u;
fn stored_key(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    return array<vec2<f32>, SPAN>(unpack2x16float(keys[row * PAIRS + j]));
}

fn stored_value(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    return array<vec2<f32>, SPAN>(unpack2x16float(values[row * PAIRS + j]));
}

fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
