// Every row's key and value into the cache, before any row attends: a workgroup takes one row and KV head.
@compute @workgroup_size(THREADS)
fn store(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = group.x;
    let m = group.y;
    if m >= live_rows() { return; }
    let scales = round_own(t, m, head);
    let row = cache_row(sequence(m), position(m), head);
    for (var j = t; j < PAIRS; j += THREADS) {
        write_key(row, j, vec2(own[2u * j], own[2u * j + 1u]));
        write_value(row, j, vec2(own[DIM + 2u * j], own[DIM + 2u * j + 1u]));
    }
    if t == 0u { write_scales(row, scales); }
}
