// Softmax-weighted sums of up to CHUNK keys for SLOTS queries that share them.
//
// The module that includes this has a workgroup of CHUNK threads, constants SLOTS, PAIRS (half of the head's width,
// rounded up), FACTOR (1 / sqrt(width)) and SCALED (whether rows have scales), and
//   key_pair(row, j), value_pair(row, j)    two neighbouring elements of a row of keys or values
//   key_scale(row), value_scale(row)        what they are to be multiplied by
// It fills `query` and `place`. Keys from `count` on are never read: what lies there may be NaN.
//
// Products that a sum follows are fma() by name, so no compiler is free to fuse them in one pipeline and not in another:
// a row has the same bits in every kernel that attends.

const CHUNK = 256u;
const STRANDS = CHUNK / PAIRS;
const PARTS = 16u;

// Queries [SLOTS][2 PAIRS]; the row of each key; scores, then exp(score - top) [SLOTS][CHUNK].
var<workgroup> query: array<f32, SLOTS * 2u * PAIRS>;
var<workgroup> place: array<u32, CHUNK>;
var<workgroup> weights: array<f32, SLOTS * CHUNK>;
var<workgroup> parts: array<f32, SLOTS * PARTS>;
var<workgroup> strands: array<vec2<f32>, CHUNK>;

// Every thread gets the largest score of each slot.
fn find_tops(t: u32) {
    if t < SLOTS * PARTS {
        let first = t / PARTS * CHUNK + t % PARTS;
        var largest = weights[first];
        for (var i = PARTS; i < CHUNK; i += PARTS) { largest = max(largest, weights[first + i]); }
        parts[t] = largest;
    }
    workgroupBarrier();
    for (var s = 0u; s < SLOTS; s++) {
        top[s] = parts[s * PARTS];
        for (var i = 1u; i < PARTS; i++) { top[s] = max(top[s], parts[s * PARTS + i]); }
    }
    workgroupBarrier();
}

// Every thread gets the sum of each slot's weights.
fn find_totals(t: u32) {
    if t < SLOTS * PARTS {
        let first = t / PARTS * CHUNK + t % PARTS;
        var sum = weights[first];
        for (var i = PARTS; i < CHUNK; i += PARTS) { sum += weights[first + i]; }
        parts[t] = sum;
    }
    workgroupBarrier();
    for (var s = 0u; s < SLOTS; s++) {
        total[s] = parts[s * PARTS];
        for (var i = 1u; i < PARTS; i++) { total[s] += parts[s * PARTS + i]; }
    }
}

// Thread t scores key t for every slot.
fn score_keys(t: u32, count: u32) {
    var score: array<f32, SLOTS>;
    var scale = FACTOR;
    if t < count {
        let row = place[t];
        for (var j = 0u; j < PAIRS; j++) {
            let key = key_pair(row, j);
            for (var s = 0u; s < SLOTS; s++) {
                let at = (s * PAIRS + j) * 2u;
                score[s] = fma(query[at + 1u], key.y, fma(query[at], key.x, score[s]));
            }
        }
        if SCALED { scale = key_scale(row) * FACTOR; }
    }
    for (var s = 0u; s < SLOTS; s++) { weights[s * CHUNK + t] = select(LOWEST, score[s] * scale, t < count); }
    workgroupBarrier();
}

// Threads share the keys out in STRANDS strands, each of PAIRS threads; thread j adds the strands of pair j in order.
fn sum_values(t: u32, count: u32) {
    var sum: array<vec2<f32>, SLOTS>;
    let j = t % PAIRS;
    if t < STRANDS * PAIRS {
        for (var i = t / PAIRS; i < count; i += STRANDS) {
            let value = value_pair(place[i], j);
            for (var s = 0u; s < SLOTS; s++) { sum[s] = fma(vec2(weights[s * CHUNK + i]), value, sum[s]); }
        }
    }
    for (var s = 0u; s < SLOTS; s++) {
        strands[t] = sum[s];
        workgroupBarrier();
        if t < PAIRS {
            mean[s] = strands[t];
            for (var i = 1u; i < STRANDS; i++) { mean[s] += strands[i * PAIRS + t]; }
        }
        workgroupBarrier();
    }
}

// The chunk of the first `count` places. `query` and `place` may be written again when this returns.
fn attend_chunk(t: u32, count: u32) {
    score_keys(t, count);
    find_tops(t);
    for (var s = 0u; s < SLOTS; s++) {
        let at = s * CHUNK + t;
        weights[at] = select(0.0f, exp(weights[at] - top[s]), t < count);
    }
    workgroupBarrier();
    find_totals(t);
    if SCALED {
        workgroupBarrier();
        if t < count {
            let scale = value_scale(place[t]);
            for (var s = 0u; s < SLOTS; s++) { weights[s * CHUNK + t] *= scale; }
        }
    }
    workgroupBarrier();
    sum_values(t, count);
}
