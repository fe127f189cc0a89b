// found: [rows][SHARES] of places.
@compute @workgroup_size(256)
fn search(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.y;
    if row >= live_wanted() { return; }
    let first = group.x * SHARE + t;
    let end = min((group.x + 1u) * SHARE, VOCABULARY);
    var best = vec2(0u, 0xffffffffu);
    for (var i = first; i < end; i += THREADS) { best = better(best, place_of(logits[row * WIDTH + i], i)); }
    best = best_of_threads(t, best);
    if t == 0u { found[row * SHARES + group.x] = best; }
}
