// Non-causal attention: a workgroup takes SLOTS tokens of one head through all chunks of keys in order.
//
// q, k, v: [HEADS * TOKENS, WIDTH]; out: [TOKENS, HEADS * WIDTH].

fn key_span(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return stored_key(row, b); }
fn value_span(row: u32, b: u32) -> array<vec2<f32>, SPAN> { return stored_value(row, b); }
fn key_scale(row: u32) -> f32 { return 1.0f; }
fn value_scale(row: u32) -> f32 { return 1.0f; }

fn load_queries(t: u32, head: u32, first: u32) {
    for (var i = t; i < SLOTS * 2u * PAIRS; i += CHUNK) {
        let token = first + i / (2u * PAIRS);
        let d = i % (2u * PAIRS);
        query[i] = 0.0f;
        if token < TOKENS && d < WIDTH { query[i] = queries[(head * TOKENS + token) * WIDTH + d]; }
    }
}

fn write(token: u32, head: u32, j: u32, pair: vec2<f32>) {
    let at = (token * HEADS + head) * WIDTH + 2u * j;
    out[at] = pair.x;
    if 2u * j + 1u < WIDTH { out[at + 1u] = pair.y; }
}

@compute @workgroup_size(256)
fn joint_attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let first = group.x * SLOTS;
    let head = group.y;
    load_queries(t, head, first);
    for (var start = 0u; start < TOKENS; start += CHUNK) {
        place[t] = head * TOKENS + start + t;
        workgroupBarrier();
        attend_chunk(t, min(CHUNK, TOKENS - start));
        for (var s = 0u; s < SLOTS; s++) { merge(s, start == 0u); }
    }
    for (var s = 0u; s < SLOTS; s++) {
        if t < PAIRS && first + s < TOKENS { write(first + s, head, t, merged_mean(s)); }
    }
}
