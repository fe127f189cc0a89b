// What a block adds to an output in int8 mode: a whole number times scales, as two factors of one fma. They are pinned, so
// that no kernel's compiler multiplies the three in another order.

// sum: of stored codes times codes of x; codes: the sum of codes of x; scale: of x.
fn terms(sum: i32, codes: i32, scale: f32, head: vec2<f32>) -> vec2<f32> {
    let whole = f32(i32(FACTOR) * sum - i32(OFFSET) * codes);
    if AFFINE { return vec2(pinned(fma(head.x, whole, pinned(head.y * f32(codes)))), scale); }
    return vec2(whole, pinned(head.x * scale));
}
