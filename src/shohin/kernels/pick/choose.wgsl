// The best of what `search` found.
@compute @workgroup_size(256)
fn choose(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.x;
    if row >= live_wanted() { return; }
    var best = vec2(0u, 0xffffffffu);
    for (var i = t; i < SHARES; i += THREADS) { best = better(best, found[row * SHARES + i]); }
    best = best_of_threads(t, best);
    if t == 0u {
        ids[row] = select(i32(best.y), -1, best.x == BROKEN);
        status[row] = select(0, 1, best.x == BROKEN);
    }
}
