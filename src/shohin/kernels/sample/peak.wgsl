// The best logit after penalties.

var<workgroup> top: atomic<u32>;

@compute @workgroup_size(256)
fn peak(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.y;
    if !is_live(row) { return; }
    let p = penalties_of(row);
    if t == 0u { atomicStore(&top, 0u); }
    workgroupBarrier();
    var best = 0u;
    for (var i = 0u; i < PER_THREAD; i++) {
        let id = group.x * SHARE + i * THREADS + t;
        if id < VOCABULARY { best = max(best, key_of(logit(row, p, id))); }
    }
    atomicMax(&top, best);
    workgroupBarrier();
    if t == 0u { atomicMax(&work[row * ROW_WORDS + PEAK], atomicLoad(&top)); }
}
