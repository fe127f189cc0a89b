// Each workgroup's shares under the temperature above the cut, and the number of its candidates at the cut; of rows that
// only take the best id, that one.

@compute @workgroup_size(256)
fn weigh(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.y;
    if !is_live(row) { return; }
    let p = penalties_of(row);
    let top = peak_of(row);
    let base = row * ROW_WORDS;
    if setting(row, KIND) == GREEDY {
        for (var i = 0u; i < PER_THREAD; i++) {
            let id = group.x * SHARE + i * THREADS + t;
            if id < VOCABULARY && key_of(logit(row, p, id)) == key_of(top) { atomicMax(&work[base + BEST], ~id); }
        }
        return;
    }
    var cut = Cut(0u, 0u, U64(0u, 0u));
    if cuts_by_share(row) {
        cut = settle_cut(row, t, 1u, group.x == 0u);
    } else if cuts_by_count(row) {
        cut = settle_cut(row, t, 0u, group.x == 0u);
    }
    let heat = real(row, TEMPERATURE);
    let least = least_of(row, top);
    var mass = U64(0u, 0u);
    var equals = 0u;
    for (var i = 0u; i < PER_THREAD; i++) {
        let id = group.x * SHARE + i * THREADS + t;
        if id >= VOCABULARY { break; }
        let x = logit(row, p, id);
        let key = key_of(x);
        if key < cut.key || x < least { continue; }
        if key == cut.key { equals++; } else { mass = add64(mass, share((x - top) / heat)); }
    }
    sum_before(t, mass);
    let at = base + GROUPS + 3u * group.x;
    if t == 0u { store64(at, sums[THREADS - 1u]); }
    sum_before(t, U64(equals, 0u));
    if t == 0u { atomicStore(&work[at + 2u], sums[THREADS - 1u].x); }
}
