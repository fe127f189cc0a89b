// A row's own key and value, rounded as the cache rounds them. Beside the constants of turn.wgsl this wants a part
// round_*.wgsl of the cache's kind.

// The key, then the value.
var<workgroup> own: array<f32, 2u * DIM>;

// `own` becomes the key and value of row m for a KV head, as the cache rounds them; their scales are returned.
fn round_own(t: u32, m: u32, head: u32) -> vec2<f32> {
    let key_from = m * ROW_WIDTH + (QUERY_HEADS + head) * DIM;
    let value_from = key_from + KV_HEADS * DIM;
    var r = 1.0f;
    if NORMED { r = head_factor(t, key_from); }
    if t < LANES {
        for (var i = t; i < PAIRS; i += LANES) {
            let e = ends(i);
            var x = vec2(qkv[key_from + e.x], qkv[key_from + e.y]);
            if NORMED { x = x * r * vec2(key_weight(e.x), key_weight(e.y)); }
            x = rotated(x, position(m), i);
            own[e.x] = x.x;
            own[e.y] = x.y;
        }
        for (var d = t; d < DIM; d += LANES) { own[DIM + d] = qkv[value_from + d]; }
    }
    workgroupBarrier();
    let scales = vec2(scale_of(t, 0u), scale_of(t, DIM));
    if t < LANES {
        for (var d = t; d < DIM; d += LANES) {
            own[d] = rounded(own[d], scales.x);
            own[DIM + d] = rounded(own[DIM + d], scales.y);
        }
    }
    workgroupBarrier();
    return scales;
}
