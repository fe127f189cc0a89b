// Attention of one row, first half: a workgroup takes one chunk of keys for up to SLOTS query heads of one KV head, and
// leaves the chunk's sums in `found`. The row's own key and value are not in the cache yet: the workgroup whose chunk they
// belong to computes and rounds them, uses them, and leaves them in `found` for join.wgsl to store. So nothing that this
// dispatch reads is written by it.
//
// found: tops [CHUNKS][QUERY_HEADS], totals likewise, means [CHUNKS][QUERY_HEADS][DIM], own keys and values
// [KV_HEADS][2][DIM], their scales [KV_HEADS][2].

const OWN = 0xffffffffu;
var<private> own_scales: vec2<f32>;

// SPAN pairs of the row's own key or value, which begins at `first`.
fn own_span(first: u32, b: u32) -> array<vec2<f32>, SPAN> {
    var pairs: array<vec2<f32>, SPAN>;
    for (var p = 0u; p < SPAN; p++) {
        let at = first + 2u * (b * SPAN + p);
        pairs[p] = vec2(own[at], own[at + 1u]);
    }
    return pairs;
}

fn key_span(row: u32, b: u32) -> array<vec2<f32>, SPAN> {
    if row == OWN { return own_span(0u, b); }
    return stored_key(row, b);
}

fn value_span(row: u32, b: u32) -> array<vec2<f32>, SPAN> {
    if row == OWN { return own_span(DIM, b); }
    return stored_value(row, b);
}

fn key_scale(row: u32) -> f32 {
    if row == OWN { return own_scales.x; }
    return stored_key_scale(row);
}

fn value_scale(row: u32) -> f32 {
    if row == OWN { return own_scales.y; }
    return stored_value_scale(row);
}

fn leave_own(t: u32, head: u32) {
    for (var d = t; d < 2u * DIM; d += CHUNK) { found[OWN_AT + head * 2u * DIM + d] = own[d]; }
    if t == 0u {
        found[SCALES_AT + 2u * head] = own_scales.x;
        found[SCALES_AT + 2u * head + 1u] = own_scales.y;
    }
}

@compute @workgroup_size(256)
fn partials(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let start = group.x * CHUNK;
    let last = position(0u);
    if start > last || live_rows() == 0u { return; }
    let head = group.y / SHARES;
    let share = group.y % SHARES * SLOTS;
    let heads = min(SLOTS, GROUP - share);
    let first = head * GROUP + share;
    load_queries(t, 0u, first, heads);
    if start + t < last { place[t] = cache_row(sequence(0u), start + t, head); }
    if last - start < CHUNK {
        own_scales = round_own(t, 0u, head);
        if start + t == last { place[t] = OWN; }
        if share == 0u { leave_own(t, head); }
    }
    workgroupBarrier();
    attend_chunk(t, min(CHUNK, last + 1u - start));
    for (var s = 0u; s < SLOTS; s++) {
        if s >= heads { continue; }
        let at = group.x * QUERY_HEADS + first + s;
        if t == 0u {
            found[at] = top[s];
            found[CHUNKS * QUERY_HEADS + at] = total[s];
        }
        if t < PAIRS {
            found[MEANS_AT + at * DIM + 2u * t] = mean[s].x;
            found[MEANS_AT + at * DIM + 2u * t + 1u] = mean[s].y;
        }
    }
}
