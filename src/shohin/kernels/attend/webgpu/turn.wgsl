// QK-norm and RoPE of heads, 64 lanes to a head (M.3 to M.5).
//
// Constants: THREADS, DIM, PAIRS = DIM / 2, QUERY_HEADS, KV_HEADS, ADJACENT pairing, NORMED, EPS.

const LANES = 64u;
const ROW_WIDTH = (QUERY_HEADS + 2u * KV_HEADS) * DIM;

var<workgroup> sums: array<f32, THREADS>;

// Where the two elements of RoPE pair i lie in a head.
fn ends(i: u32) -> vec2<u32> {
    if ADJACENT { return vec2(2u * i, 2u * i + 1u); }
    return vec2(i, i + PAIRS);
}

// 1 / root mean square of the head that begins at `base`: t's 64 neighbours share a head.
fn head_factor(t: u32, base: u32) -> f32 {
    var sum = 0.0f;
    for (var i = t % LANES; i < DIM; i += LANES) { sum = fma(qkv[base + i], qkv[base + i], sum); }
    sums[t] = sum;
    workgroupBarrier();
    let first = t / LANES * LANES;
    sum = 0.0f;
    for (var i = t % 8u; i < LANES; i += 8u) { sum += sums[first + i]; }
    workgroupBarrier();
    sums[t] = sum;
    workgroupBarrier();
    sum = sums[first];
    for (var i = 1u; i < 8u; i++) { sum += sums[first + i]; }
    workgroupBarrier();
    return 1.0f / sqrt(sum / f32(DIM) + EPS);
}

// RoPE of pair i by position `at`.
fn rotated(x: vec2<f32>, at: u32, i: u32) -> vec2<f32> {
    let c = rope[at * DIM + i];
    let s = rope[at * DIM + PAIRS + i];
    return vec2(fma(x.x, c, -(x.y * s)), fma(x.x, s, x.y * c));
}
