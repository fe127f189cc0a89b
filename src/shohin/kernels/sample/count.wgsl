// Counts and shares of the candidates that agree with the search so far, by their next byte. Constants: ROUND, LEVEL.

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> lows: array<atomic<u32>, 256>;
var<workgroup> highs: array<atomic<u32>, 256>;

@compute @workgroup_size(256)
fn count(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.y;
    if !is_live(row) || setting(row, KIND) != SAMPLED { return; }
    if ROUND == 0u && !cuts_by_count(row) { return; }
    if ROUND == 1u && !cuts_by_share(row) { return; }
    let level = 4u * ROUND + LEVEL;
    atomicStore(&counts[t], 0u);
    atomicStore(&lows[t], 0u);
    atomicStore(&highs[t], 0u);
    var prefix = 0u;
    var settled = 0u;
    if LEVEL > 0u {
        prefix = settle(row, t, level - 1u, group.x == 0u).prefix;
        settled = ~(0xffffffffu >> (8u * LEVEL));
    } else if ROUND == 1u && cuts_by_count(row) {
        settle_cut(row, t, 0u, group.x == 0u);
    }
    workgroupBarrier();
    let p = penalties_of(row);
    let top = peak_of(row);
    for (var i = 0u; i < PER_THREAD; i++) {
        let id = group.x * SHARE + i * THREADS + t;
        if id >= VOCABULARY { break; }
        let x = logit(row, p, id);
        let key = key_of(x);
        if ((key ^ prefix) & settled) != 0u { continue; }
        let byte = key >> (24u - 8u * LEVEL) & 255u;
        let mine = share(x - top);
        atomicAdd(&counts[byte], 1u);
        let low = atomicAdd(&lows[byte], mine.x);
        atomicAdd(&highs[byte], mine.y + select(0u, 1u, low + mine.x < low));
    }
    workgroupBarrier();
    let number = atomicLoad(&counts[t]);
    if number == 0u { return; }
    let at = bin_at(row, level, t);
    atomicAdd(&work[at], number);
    let low = atomicLoad(&lows[t]);
    let before = atomicAdd(&work[at + 1u], low);
    atomicAdd(&work[at + 2u], atomicLoad(&highs[t]) + select(0u, 1u, before + low < before));
}
