// The SLOTS query heads of row m from `first` on, normed and turned into `query`; heads beyond their group are zeros.
fn load_queries(t: u32, m: u32, first: u32, heads: u32) {
    for (var s = 0u; s < SLOTS; s += THREADS / LANES) {
        let slot = s + t / LANES;
        let live = slot < heads;
        let base = m * ROW_WIDTH + (first + min(slot, heads - 1u)) * DIM;
        var r = 1.0f;
        if NORMED { r = head_factor(t, base); }
        if slot < SLOTS {
            for (var i = t % LANES; i < PAIRS; i += LANES) {
                let e = ends(i);
                var x = vec2(qkv[base + e.x], qkv[base + e.y]);
                if NORMED { x = x * r * vec2(query_weight(e.x), query_weight(e.y)); }
                x = select(vec2(0.0f), rotated(x, position(m), i), live);
                query[slot * DIM + e.x] = x.x;
                query[slot * DIM + e.y] = x.y;
            }
        }
    }
}
