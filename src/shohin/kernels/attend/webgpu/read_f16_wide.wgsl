// Four pairs of a row of keys or values, a half each: a load of 16 bytes. Unpacking is exact and one instruction a word, so
// there is nothing that a device's own float16 would do better.
const SPAN = 4u;

fn four_pairs(w: vec4<u32>) -> array<vec2<f32>, SPAN> {
    return array<vec2<f32>, SPAN>(
        unpack2x16float(w.x), unpack2x16float(w.y), unpack2x16float(w.z), unpack2x16float(w.w));
}

fn stored_key(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return four_pairs(keys[row * (PAIRS / SPAN) + b]); }
fn stored_value(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return four_pairs(values[row * (PAIRS / SPAN) + b]); }
fn stored_key_scale(row: u32) -> f32 { return 1.0f; }
fn stored_value_scale(row: u32) -> f32 { return 1.0f; }
