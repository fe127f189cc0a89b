// What all dispatches of `sample` share: a row's settings, its logits after penalties, shares, and sums of 64 bits.
//
// Candidates stand in one order, larger logits first and lower ids first among equals; each filter keeps the head of it,
// so one logit and a number of equals say who is left. exp(x - peak) is kept as a whole number of 64 bits, vec2(low, high),
// the peak's share being 2^BITS: sums don't depend on their order, so neither do ids. Nothing but `logit` and `share`
// computes with floats.
//
// A row of `work`, zero at first: PEAK (its key), BEST (~ its lowest id), CUT (see there), two by two states of the search
// for a cut, one before each byte, then HISTOGRAMS (256 x count, share of a byte) and GROUPS (share above the cut, number
// at the cut). Constants: VOCABULARY, WIDTH (of a row of logits), SHARES (workgroups of a row), BITS, ROW_WORDS, WORDS and
// BIAS_WORDS (of settings and biases), and those that layout of webgpu.py names.

const THREADS = 256u;
const PER_THREAD = 8u;
const SHARE = 2048u;
const PICKED = 0u;
const GREEDY = 1u;
const SAMPLED = 2u;
// Words of settings.py's SETTINGS.
const TEMPERATURE = 0u;
const TOP_P = 2u;
const LEAST = 4u;
const REPETITION = 6u;
const PRESENCE = 8u;
const FREQUENCY = 10u;
const SEED = 12u;
const INDEX = 14u;
const CHOICE = 16u;
const TOP_K = 17u;
const SLOT = 18u;
const BIASED = 19u;
const KIND = 20u;

alias U64 = vec2<u32>;

fn add64(a: U64, b: U64) -> U64 {
    let low = a.x + b.x;
    return U64(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub64(a: U64, b: U64) -> U64 { return U64(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }

fn less64(a: U64, b: U64) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }

fn multiply32(a: u32, b: u32) -> U64 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let one = (a >> 16u) * (b & 0xffffu);
    let other = (a & 0xffffu) * (b >> 16u);
    let middle = (low >> 16u) + (one & 0xffffu) + (other & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (one >> 16u) + (other >> 16u) + (middle >> 16u);
    return U64(middle << 16u | (low & 0xffffu), high);
}

// The low 64 bits.
fn times(a: U64, n: u32) -> U64 { return add64(multiply32(a.x, n), U64(0u, a.y * n)); }

// The high 64 bits of 128.
fn multiply_high(a: U64, b: U64) -> U64 {
    let one = multiply32(a.x, b.y);
    let other = multiply32(a.y, b.x);
    let middle = add64(add64(U64(multiply32(a.x, b.x).y, 0u), U64(one.x, 0u)), U64(other.x, 0u));
    return add64(multiply32(a.y, b.y), add64(U64(middle.y, 0u), add64(U64(one.y, 0u), U64(other.y, 0u))));
}

fn setting(row: u32, word: u32) -> u32 { return u32(settings[row * WORDS + word]); }

// A float64 as a float32, what is too large as the largest.
fn single(low: u32, high: u32) -> f32 {
    let exponent = high >> 20u & 0x7ffu;
    let sign = high & 0x80000000u;
    if exponent < 897u { return 0.0; }
    if exponent > 1149u { return select(3.4e38, -3.4e38, sign != 0u); }
    let bits = (exponent - 896u) << 23u | (high & 0xfffffu) << 3u | low >> 29u;
    return bitcast<f32>(sign | (bits + (low >> 28u & 1u)));
}

fn real(row: u32, word: u32) -> f32 { return single(setting(row, word), setting(row, word + 1u)); }

// A float64 below 1 as a whole multiple of 2^-64.
fn fraction(row: u32, word: u32) -> U64 {
    let low = setting(row, word);
    let high = setting(row, word + 1u);
    let exponent = high >> 20u & 0x7ffu;
    let mantissa = U64(low, (high & 0xfffffu) | 0x100000u);
    if exponent >= 1011u { return shift_left(mantissa, exponent - 1011u); }
    let right = 1011u - exponent;
    if right >= 53u { return U64(0u, 0u); }
    if right >= 32u { return U64(mantissa.y >> (right - 32u), 0u); }
    return U64(mantissa.x >> right | mantissa.y << (32u - right), mantissa.y >> right);
}

// Whether anything is to be done for a row.
fn is_live(row: u32) -> bool { return row < live_wanted() && setting(row, KIND) != PICKED && status[row] == 0; }

fn cuts_by_count(row: u32) -> bool { return setting(row, TOP_K) > 0u; }

// The float64 1 is 0x3ff00000 00000000.
fn cuts_by_share(row: u32) -> bool { return setting(row, TOP_P + 1u) < 0x3ff00000u; }

// What a row's logits go through.
struct Penalties {
    any: bool,
    repetition: f32,
    presence: f32,
    frequency: f32,
    history: u32,
    first_bias: u32,
    biases: u32,
}

fn penalties_of(row: u32) -> Penalties {
    let p = Penalties(
        false, real(row, REPETITION), real(row, PRESENCE), real(row, FREQUENCY), setting(row, SLOT) * VOCABULARY,
        row * BIAS_WORDS, setting(row, BIASED));
    let any = p.repetition != 1.0 || p.presence != 0.0 || p.frequency != 0.0 || p.biases > 0u;
    return Penalties(any, p.repetition, p.presence, p.frequency, p.history, p.first_bias, p.biases);
}

fn bias_of(p: Penalties, id: u32) -> f32 {
    var low = 0u;
    var high = p.biases;
    while low < high {
        let middle = (low + high) / 2u;
        if u32(biases[p.first_bias + 4u * middle + 2u]) < id { low = middle + 1u; } else { high = middle; }
    }
    let at = p.first_bias + 4u * low;
    if low == p.biases || u32(biases[at + 2u]) != id { return 0.0; }
    return single(u32(biases[at]), u32(biases[at + 1u]));
}

// A logit after penalties and bias.
fn logit(row: u32, p: Penalties, id: u32) -> f32 {
    var x = logits[row * WIDTH + id];
    if !p.any { return x; }
    let seen = history[p.history + id];
    if seen != 0 { x = select(x * p.repetition, x / p.repetition, x > 0.0); }
    if seen > 1 { x = fma(-p.frequency, f32(seen >> 1u), x - p.presence); }
    if p.biases > 0u { x += bias_of(p, id); }
    return clamp(x, -3.4e38, 3.4e38);
}

// Larger for larger logits; zeros of either sign are equal.
fn key_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    if size == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, bits != size);
}

fn logit_of(key: u32) -> f32 { return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u)); }

fn shift_left(a: U64, by: u32) -> U64 {
    if by >= 32u { return U64(0u, a.x << (by - 32u)); }
    return U64(a.x << by, a.y << by | select(a.x >> (32u - by), 0u, by == 0u));
}

// exp of something that is not above 0, within four units of 2^-24 and the rounding of the argument. Not the built-in one,
// whose error a driver may choose: 2^r, r within a half of 0, is its series up to r^7 (the rest is below 2^-27).
fn share(distance: f32) -> U64 {
    let d = max(distance, -100.0);
    let whole = round(d * 1.44269502);
    let r = fma(d, 1.44269502, -whole) + d * 1.925963e-8;
    var power = fma(1.5252734e-5, r, 1.5403530e-4);
    power = fma(power, r, 1.3333558e-3);
    power = fma(power, r, 9.6181291e-3);
    power = fma(power, r, 5.5504109e-2);
    power = fma(power, r, 2.4022651e-1);
    power = fma(power, r, 6.9314718e-1);
    power = fma(power, r, 1.0);
    let mantissa = u32(power * 16777216.0);
    let shift = i32(BITS) + i32(whole) - 24;
    if shift < 0 { return U64(select(mantissa >> u32(-shift), 0u, shift < -25), 0u); }
    return shift_left(U64(mantissa, 0u), u32(shift));
}

fn peak_of(row: u32) -> f32 { return logit_of(atomicLoad(&work[row * ROW_WORDS + PEAK])); }

fn load64(at: u32) -> U64 { return U64(atomicLoad(&work[at]), atomicLoad(&work[at + 1u])); }

fn store64(at: u32, value: U64) {
    atomicStore(&work[at], value.x);
    atomicStore(&work[at + 1u], value.y);
}

var<workgroup> sums: array<U64, THREADS>;

// The sum of what the threads before t have; that of all is sums[THREADS - 1] until the next call.
fn sum_before(t: u32, mine: U64) -> U64 {
    var sum = mine;
    workgroupBarrier();
    sums[t] = sum;
    workgroupBarrier();
    for (var stride = 1u; stride < THREADS; stride *= 2u) {
        if t >= stride { sum = add64(sum, sums[t - stride]); }
        workgroupBarrier();
        sums[t] = sum;
        workgroupBarrier();
    }
    return sub64(sum, mine);
}
