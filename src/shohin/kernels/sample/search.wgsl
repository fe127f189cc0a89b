// The search for the candidate at which the weight of the order's head reaches a goal: under top_k (round 0) candidates
// weigh 1, under top_p (round 1) their shares. Four bytes of the key are settled one after the other, best first.

// goal: what is still missing; ahead: the shares before the bin; prefix: bytes of the key that are settled.
struct Search {
    goal: U64,
    ahead: U64,
    prefix: u32,
}

// The last candidate that is left is number `equals` of those with this key. head: the shares of all that are left.
struct Cut {
    key: u32,
    equals: u32,
    head: U64,
}

fn state_at(row: u32, level: u32) -> u32 { return row * ROW_WORDS + STATES + 5u * level; }

fn bin_at(row: u32, level: u32, byte: u32) -> u32 {
    return row * ROW_WORDS + HISTOGRAMS + 3u * (256u * level + byte);
}

fn search_at(row: u32, level: u32) -> Search {
    let at = state_at(row, level);
    return Search(load64(at), load64(at + 2u), atomicLoad(&work[at + 4u]));
}

fn cut_at(row: u32, round: u32) -> Cut {
    let at = row * ROW_WORDS + CUT + 4u * round;
    return Cut(atomicLoad(&work[at]), atomicLoad(&work[at + 1u]), load64(at + 2u));
}

// At least the share of the first.
fn top_p_goal(row: u32, total: U64) -> U64 {
    let goal = add64(multiply_high(fraction(row, TOP_P), total), U64(1u, 0u));
    return select(goal, total, less64(total, goal));
}

var<workgroup> next: Search;

// The search after a byte more; all threads come here, and the first group of the row writes it down.
fn settle(row: u32, t: u32, level: u32, writes: bool) -> Search {
    let by_count = level < 4u;
    let byte = 255u - t;
    let at = bin_at(row, level, byte);
    let count = atomicLoad(&work[at]);
    let mass = load64(at + 1u);
    let ahead = sum_before(t, mass);
    let total = sums[THREADS - 1u];
    var weight = mass;
    if by_count { weight = U64(count, 0u); }
    let before = sum_before(t, weight);
    var search = search_at(row, level);
    if level == 0u { search.goal = U64(setting(row, TOP_K), 0u); }
    if level == 4u {
        var all = total;
        if cuts_by_count(row) { all = cut_at(row, 0u).head; }
        search.goal = top_p_goal(row, all);
    }
    if less64(before, search.goal) && !less64(add64(before, weight), search.goal) {
        let place = 24u - 8u * (level & 3u);
        next = Search(sub64(search.goal, before), add64(search.ahead, ahead), search.prefix | byte << place);
    }
    workgroupBarrier();
    let found = next;
    if writes && t == 0u && (level & 3u) < 3u {
        let to = state_at(row, level + 1u);
        store64(to, found.goal);
        store64(to + 2u, found.ahead);
        atomicStore(&work[to + 4u], found.prefix);
    }
    return found;
}

// The cut of a round whose four bytes are counted.
fn settle_cut(row: u32, t: u32, round: u32, writes: bool) -> Cut {
    let found = settle(row, t, 4u * round + 3u, writes);
    let one = share(logit_of(found.prefix) - peak_of(row));
    var equals = found.goal.x;
    if round == 1u {
        // The fewest whose shares reach the goal: there are at most VOCABULARY, whose product with a share is no overflow.
        equals = 0u;
        for (var bit = 1u << 24u; bit > 0u; bit >>= 1u) {
            if equals + bit <= VOCABULARY && less64(times(one, equals + bit), found.goal) { equals += bit; }
        }
        equals += 1u;
    }
    let cut = Cut(found.prefix, equals, add64(found.ahead, times(one, equals)));
    if writes && t == 0u {
        let to = row * ROW_WORDS + CUT + 4u * round;
        atomicStore(&work[to], cut.key);
        atomicStore(&work[to + 1u], cut.equals);
        store64(to + 2u, cut.head);
    }
    return cut;
}
