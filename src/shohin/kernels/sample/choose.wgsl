// The id of each row; one workgroup looks at what the others have weighed, and then at the share where the draw falls.

// Philox4x32-10, Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: 53 random bits, the
// upper ones of 64.
fn random_bits(row: u32) -> U64 {
    var c = vec4(setting(row, INDEX), setting(row, INDEX + 1u), setting(row, CHOICE), 0u);
    var key = vec2(setting(row, SEED), setting(row, SEED + 1u));
    for (var i = 0; i < 10; i++) {
        let first = multiply32(0xD2511F53u, c.x);
        let second = multiply32(0xCD9E8D57u, c.z);
        c = vec4(second.y ^ c.y ^ key.x, second.x, first.y ^ c.w ^ key.y, first.x);
        key += vec2(0x9E3779B9u, 0xBB67AE85u);
    }
    let low = c.y >> 6u;
    return U64(low << 11u, (c.x >> 5u) << 5u | low >> 21u);
}

// Where the draw falls: the workgroup's share, what is still missing there, candidates at the cut before it; then the id.
var<workgroup> place: u32;
var<workgroup> missing: U64;
var<workgroup> equals_before: u32;
var<workgroup> chosen: u32;

// How many of some candidates at the cut are left, of which `before` lie ahead.
fn left_of(number: u32, before: u32, equals: u32) -> u32 { return min(number, equals - min(before, equals)); }

fn group_share(base: u32, group: u32, before: u32, cut: Cut, one: U64) -> U64 {
    let at = base + GROUPS + 3u * group;
    return add64(load64(at), times(one, left_of(atomicLoad(&work[at + 2u]), before, cut.equals)));
}

fn find_group(row: u32, t: u32, cut: Cut, one: U64) {
    const EACH = (SHARES + THREADS - 1u) / THREADS;
    let base = row * ROW_WORDS;
    let first = min(t * EACH, SHARES);
    let end = min(first + EACH, SHARES);
    var equals = 0u;
    for (var g = first; g < end; g++) { equals += atomicLoad(&work[base + GROUPS + 3u * g + 2u]); }
    let before = sum_before(t, U64(equals, 0u)).x;
    var mine = U64(0u, 0u);
    var seen = before;
    for (var g = first; g < end; g++) {
        mine = add64(mine, group_share(base, g, seen, cut, one));
        seen += atomicLoad(&work[base + GROUPS + 3u * g + 2u]);
    }
    var ahead = sum_before(t, mine);
    let goal = add64(multiply_high(random_bits(row), sums[THREADS - 1u]), U64(1u, 0u));
    seen = before;
    for (var g = first; g < end; g++) {
        let after = add64(ahead, group_share(base, g, seen, cut, one));
        if less64(ahead, goal) && !less64(after, goal) {
            place = g;
            missing = sub64(goal, ahead);
            equals_before = seen;
        }
        ahead = after;
        seen += atomicLoad(&work[base + GROUPS + 3u * g + 2u]);
    }
    workgroupBarrier();
}

fn find_id(row: u32, t: u32, cut: Cut, one: U64, top: f32) {
    let p = penalties_of(row);
    let heat = real(row, TEMPERATURE);
    let least = least_of(row, top);
    let first = place * SHARE + t * PER_THREAD;
    let end = min(first + PER_THREAD, VOCABULARY);
    var equals = 0u;
    for (var id = first; id < end; id++) {
        let x = logit(row, p, id);
        if key_of(x) == cut.key && x >= least { equals++; }
    }
    var seen = equals_before + sum_before(t, U64(equals, 0u)).x;
    var shares: array<U64, PER_THREAD>;
    var mine = U64(0u, 0u);
    for (var i = 0u; i < PER_THREAD; i++) {
        shares[i] = U64(0u, 0u);
        if first + i >= end { continue; }
        let x = logit(row, p, first + i);
        let key = key_of(x);
        if x < least || key < cut.key { continue; }
        if key > cut.key {
            shares[i] = share((x - top) / heat);
        } else {
            if seen < cut.equals { shares[i] = one; }
            seen++;
        }
        mine = add64(mine, shares[i]);
    }
    var ahead = sum_before(t, mine);
    for (var i = 0u; i < PER_THREAD; i++) {
        let after = add64(ahead, shares[i]);
        if less64(ahead, missing) && !less64(after, missing) { chosen = first + i; }
        ahead = after;
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn choose(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.x;
    if !is_live(row) { return; }
    if t == 0u {
        // For a draw that no thread claims, which sums of the same whole numbers leave no room for.
        chosen = u32(ids[row]);
        if setting(row, KIND) == GREEDY { chosen = ~atomicLoad(&work[row * ROW_WORDS + BEST]); }
    }
    if setting(row, KIND) == SAMPLED {
        var cut = Cut(0u, 0u, U64(0u, 0u));
        if cuts_by_share(row) { cut = cut_at(row, 1u); } else if cuts_by_count(row) { cut = cut_at(row, 0u); }
        let top = peak_of(row);
        var one = U64(0u, 0u);
        if cut.equals > 0u { one = share((logit_of(cut.key) - top) / real(row, TEMPERATURE)); }
        find_group(row, t, cut, one);
        find_id(row, t, cut, one, top);
    }
    workgroupBarrier();
    if t != 0u { return; }
    ids[row] = i32(chosen);
    history[setting(row, SLOT) * VOCABULARY + chosen] += 2;
    let index = setting(row, INDEX) + 1u;
    settings[row * WORDS + INDEX] = i32(index);
    if index == 0u { settings[row * WORDS + INDEX + 1u] += 1; }
}
