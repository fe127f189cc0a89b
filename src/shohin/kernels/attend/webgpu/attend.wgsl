// Attention of many rows: a workgroup takes up to SLOTS query heads of one row, which share a KV head, through all chunks.
//
// Constants beside those of its parts: GROUP query heads a KV head, SHARES = ceil(GROUP / SLOTS) workgroups a KV head.

fn key_span(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return stored_key(row, b); }
fn value_span(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return stored_value(row, b); }
fn key_scale(row: u32) -> f32 { return stored_key_scale(row); }
fn value_scale(row: u32) -> f32 { return stored_value_scale(row); }

@compute @workgroup_size(256)
fn attend(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let m = group.y;
    if m >= live_rows() { return; }
    let head = group.x / SHARES;
    let share = group.x % SHARES * SLOTS;
    let heads = min(SLOTS, GROUP - share);
    let first = head * GROUP + share;
    let length = position(m) + 1u;
    let owner = sequence(m);
    load_queries(t, m, first, heads);
    for (var start = 0u; start < length; start += CHUNK) {
        if start + t < length { place[t] = cache_row(owner, start + t, head); }
        workgroupBarrier();
        attend_chunk(t, min(CHUNK, length - start));
        for (var s = 0u; s < SLOTS; s++) { merge(s, start == 0u); }
    }
    for (var s = 0u; s < SLOTS; s++) {
        if s < heads && t < PAIRS {
            let pair = merged_mean(s);
            let at = (m * QUERY_HEADS + first + s) * DIM + 2u * t;
            out[at] = pair.x;
            out[at + 1u] = pair.y;
        }
    }
}
