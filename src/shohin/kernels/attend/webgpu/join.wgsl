// Attention of one row, second half: a workgroup merges the chunks of one query head in order, and the first KV_HEADS of them
// store the row's own key and value. `found` is that of partials.wgsl.
@compute @workgroup_size(THREADS)
fn join(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    if live_rows() == 0u { return; }
    let head = group.x;
    let last = position(0u);
    let chunks = last / 256u + 1u;
    if head < KV_HEADS {
        let row = cache_row(sequence(0u), last, head);
        let base = OWN_AT + head * 2u * DIM;
        for (var j = t; j < PAIRS; j += THREADS) {
            write_key(row, j, vec2(found[base + 2u * j], found[base + 2u * j + 1u]));
            write_value(row, j, vec2(found[base + DIM + 2u * j], found[base + DIM + 2u * j + 1u]));
        }
        if t == 0u { write_scales(row, vec2(found[SCALES_AT + 2u * head], found[SCALES_AT + 2u * head + 1u])); }
    }
    for (var j = t; j < PAIRS; j += THREADS) {
        for (var c = 0u; c < chunks; c++) {
            let at = c * QUERY_HEADS + head;
            top[0] = found[at];
            total[0] = found[CHUNKS * QUERY_HEADS + at];
            mean[0] = vec2(found[MEANS_AT + at * DIM + 2u * j], found[MEANS_AT + at * DIM + 2u * j + 1u]);
            merge(0u, c == 0u);
        }
        let pair = merged_mean(0u);
        out[head * DIM + 2u * j] = pair.x;
        out[head * DIM + 2u * j + 1u] = pair.y;
    }
}
