// Softmax-weighted sums of up to CHUNK keys for SLOTS queries that share them.
//
// The module that includes this has a workgroup of CHUNK threads, constants SLOTS, PAIRS (half of the head's width,
// rounded up), SPAN (pairs of a load), FACTOR (1 / sqrt(width)) and SCALED (whether rows have scales), and
//   key_span(row, b), value_span(row, b)    SPAN pairs of neighbouring elements of a row of keys or values
//   key_scale(row), value_scale(row)        what they are to be multiplied by
// It fills `query` and `place`. Keys from `count` on are never read: what lies there may be NaN.
//
// Products that a sum follows are fma() by name, so no compiler is free to fuse them in one pipeline and not in another:
// a row has the same bits in every kernel that attends.

const CHUNK = 256u;
const PARTS = 16u;
// A row of values is read by SPANS threads, and STRANDS rows are read at a time.
const SPANS = PAIRS / SPAN;
const STRANDS = CHUNK / SPANS;
// Rows of values that a thread asks for before it needs the first.
const AHEAD = 4u;

// Queries [SLOTS][2 PAIRS]; the row of each key; scores, then exp(score - top) [SLOTS][CHUNK], and when these are used up
// the strands' sums [CHUNK][2 SPAN] of one slot.
var<workgroup> query: array<f32, SLOTS * 2u * PAIRS>;
var<workgroup> place: array<u32, CHUNK>;
var<workgroup> weights: array<f32, max(SLOTS, 2u * SPAN) * CHUNK>;
var<workgroup> parts: array<f32, SLOTS * PARTS>;

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
        for (var b = 0u; b < SPANS; b++) {
            let key = key_span(row, b);
            for (var s = 0u; s < SLOTS; s++) {
                let at = (s * PAIRS + b * SPAN) * 2u;
                for (var i = 0u; i < SPAN; i++) {
                    score[s] = fma(query[at + 2u * i], key[i].x, score[s]);
                    score[s] = fma(query[at + 2u * i + 1u], key[i].y, score[s]);
                }
            }
        }
        if SCALED { scale = key_scale(row) * FACTOR; }
    }
    for (var s = 0u; s < SLOTS; s++) { weights[s * CHUNK + t] = select(LOWEST, score[s] * scale, t < count); }
    workgroupBarrier();
}

// Adds key i's values to the sums of every slot.
fn add_value(i: u32, value: array<vec2<f32>, SPAN>, sum: ptr<function, array<array<vec2<f32>, SPAN>, SLOTS>>) {
    for (var s = 0u; s < SLOTS; s++) {
        let weight = vec2(weights[s * CHUNK + i]);
        for (var p = 0u; p < SPAN; p++) { (*sum)[s][p] = fma(weight, value[p], (*sum)[s][p]); }
    }
}

// The strands of slot s are added in order: thread j gets pair j.
fn join_strands(t: u32, s: u32, sum: array<vec2<f32>, SPAN>) {
    for (var p = 0u; p < SPAN; p++) {
        weights[2u * (t * SPAN + p)] = sum[p].x;
        weights[2u * (t * SPAN + p) + 1u] = sum[p].y;
    }
    workgroupBarrier();
    if t < PAIRS {
        var all = vec2(weights[2u * t], weights[2u * t + 1u]);
        for (var i = 1u; i < STRANDS; i++) {
            let at = 2u * (i * PAIRS + t);
            all += vec2(weights[at], weights[at + 1u]);
        }
        mean[s] = all;
    }
    workgroupBarrier();
}

// Threads share the keys out in STRANDS strands, each of SPANS threads.
fn sum_values(t: u32, count: u32) {
    var sum: array<array<vec2<f32>, SPAN>, SLOTS>;
    let b = t % SPANS;
    if t < STRANDS * SPANS {
        for (var i = t / SPANS; i < count; i += AHEAD * STRANDS) {
            var ahead: array<array<vec2<f32>, SPAN>, AHEAD>;
            for (var a = 0u; a < AHEAD; a++) { ahead[a] = value_span(place[min(i + a * STRANDS, count - 1u)], b); }
            for (var a = 0u; a < AHEAD; a++) {
                if i + a * STRANDS < count { add_value(i + a * STRANDS, ahead[a], &sum); }
            }
        }
    }
    workgroupBarrier();
    for (var s = 0u; s < SLOTS; s++) { join_strands(t, s, sum[s]); }
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
