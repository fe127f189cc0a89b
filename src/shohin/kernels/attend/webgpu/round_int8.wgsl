// K and V in int8: scale = f16(max / 127), code = round-half-even(x / scale). A head that is not finite has scale NaN.
var<workgroup> sizes: array<u32, THREADS>;

// The scale of own[base] to own[base + DIM - 1]. Sizes are compared as bits: NaN is above infinity, and that above numbers.
fn scale_of(t: u32, base: u32) -> f32 {
    var size = 0u;
    for (var d = t; d < DIM; d += THREADS) { size = max(size, bitcast<u32>(own[base + d]) & 0x7fffffffu); }
    sizes[t] = size;
    workgroupBarrier();
    size = 0u;
    for (var i = t % 16u; i < THREADS; i += 16u) { size = max(size, sizes[i]); }
    workgroupBarrier();
    sizes[t] = size;
    workgroupBarrier();
    for (var i = 0u; i < 16u; i++) { size = max(size, sizes[i]); }
    workgroupBarrier();
    if size >= 0x7f800000u { return from_half(0x7e00u | (size & 1u)); }
    return from_half(to_half(bitcast<f32>(size) / 127.0f));
}

// The code of x as a float; 0 where the scale is 0 or not finite.
fn rounded(x: f32, scale: f32) -> f32 {
    let size = bitcast<u32>(scale) & 0x7fffffffu;
    if size == 0u || size >= 0x7f800000u { return 0.0f; }
    return clamp(round(x / scale), -127.0f, 127.0f);
}
