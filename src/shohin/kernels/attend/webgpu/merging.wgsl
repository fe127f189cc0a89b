// What a chunk of keys gives for each of SLOTS queries, and the merging of chunks in order (M.8).

const LOWEST = -3.4028234e38f;

// Of the chunk, and of all chunks so far: largest score, sum of weights, and in thread j < PAIRS the weighted sum of
// pair j.
var<private> top: array<f32, SLOTS>;
var<private> total: array<f32, SLOTS>;
var<private> mean: array<vec2<f32>, SLOTS>;
var<private> all_top: array<f32, SLOTS>;
var<private> all_total: array<f32, SLOTS>;
var<private> all_mean: array<vec2<f32>, SLOTS>;

fn merge(s: u32, first: bool) {
    if first {
        all_top[s] = top[s];
        all_total[s] = total[s];
        all_mean[s] = mean[s];
        return;
    }
    let merged = max(all_top[s], top[s]);
    let before = exp(all_top[s] - merged);
    let now = exp(top[s] - merged);
    all_top[s] = merged;
    all_total[s] = fma(all_total[s], before, total[s] * now);
    all_mean[s] = fma(all_mean[s], vec2(before), mean[s] * now);
}

fn merged_mean(s: u32) -> vec2<f32> { return all_mean[s] * (1.0f / all_total[s]); }
