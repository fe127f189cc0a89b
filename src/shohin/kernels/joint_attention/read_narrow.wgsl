// A pair of a row of keys or values of any width; an odd one is read as if a zero followed.
const SPAN = 1u;

fn stored_key(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    let at = row * WIDTH + 2u * j;
    if 2u * j + 1u < WIDTH { return array<vec2<f32>, SPAN>(vec2(keys[at], keys[at + 1u])); }
    return array<vec2<f32>, SPAN>(vec2(keys[at], 0.0f));
}

fn stored_value(row: u32, j: u32) -> array<vec2<f32>, SPAN> {
    let at = row * WIDTH + 2u * j;
    if 2u * j + 1u < WIDTH { return array<vec2<f32>, SPAN>(vec2(values[at], values[at + 1u])); }
    return array<vec2<f32>, SPAN>(vec2(values[at], 0.0f));
}
