// The best token of each wanted row. `search` leaves the best of every share of the vocabulary, `choose` the best of these.
//
// Logits are read as words and compared as integers, so nothing rests on what a compiler makes of NaN, of infinities or of
// zeros with signs. Constants: VOCABULARY, WIDTH (of a row of logits), SHARE (logits of a workgroup), SHARES.

const THREADS = 256u;
const BROKEN = 0xffffffffu;

// A place in the order: x is larger for a larger logit, y the index. What is not finite stands above every number.
fn place_of(bits: u32, index: u32) -> vec2<u32> {
    let size = bits & 0x7fffffffu;
    if size >= 0x7f800000u { return vec2(BROKEN, 0u); }
    // Zeros of either sign are equal.
    if size == 0u { return vec2(0x80000000u, index); }
    return vec2(select(bits | 0x80000000u, ~bits, bits != size), index);
}

// Among equals the lower index.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

var<workgroup> places: array<vec2<u32>, THREADS>;

// The best of all threads' places, in thread 0.
fn best_of_threads(t: u32, mine: vec2<u32>) -> vec2<u32> {
    var best = mine;
    places[t] = best;
    workgroupBarrier();
    if t < 16u {
        for (var i = t + 16u; i < THREADS; i += 16u) { best = better(best, places[i]); }
    }
    workgroupBarrier();
    if t < 16u { places[t] = best; }
    workgroupBarrier();
    if t == 0u {
        for (var i = 1u; i < 16u; i++) { best = better(best, places[i]); }
    }
    return best;
}
