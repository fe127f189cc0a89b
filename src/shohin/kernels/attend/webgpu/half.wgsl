// float16 in the halves of a word. Rounding a float to it is written out, because what a driver's own conversion does with
// ties and with numbers too small or too large is the driver's choice.

// The nearest float16, ties to even; NaN stays NaN.
fn to_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u { return sign | 0x7e00u; }
    if size >= 0x477ff000u { return sign | 0x7c00u; }
    // Below the normal range a step is 2^-24.
    if size < 0x38800000u { return sign | u32(round(bitcast<f32>(size) * 16777216.0f)); }
    return sign | ((size - 0x38000000u + 0x0fffu + ((size >> 13u) & 1u)) >> 13u);
}

fn from_half(bits: u32) -> f32 { return unpack2x16float(bits & 0xffffu).x; }

fn to_halves(pair: vec2<f32>) -> u32 { return to_half(pair.x) | (to_half(pair.y) << 16u); }
