// A row of x as int8 codes: q = round-half-even(v * (127 / a)) with v = x * norm and a = max|v| of a block, under the
// scale factor * a / 127 with the RMSNorm factor (design.md 4).
//
// The module that includes this has REDUCED threads a workgroup, x and norm as vec4<f32>, and put_codes(i, word) to keep
// word i of the row: quads in the order in which weights give theirs.

const VECTORS_OF_X = WIDTH / 4u;
// Vectors of x that a thread reads side by side.
const CHUNK = 4u;
// Below this a block counts as zero: 127 / a would overflow.
const SILENT = 1.5e-36f;
const INFINITE = 0x7f800000u;

// Of each block: max|v| as bits, then 127 / a; the sum of codes; the scale.
var<workgroup> tops: array<atomic<u32>, BLOCKS>;
var<workgroup> sums: array<atomic<i32>, BLOCKS>;
var<workgroup> scales: array<f32, BLOCKS>;

fn value(m: u32, i: u32) -> vec4<f32> {
    let four = x[m * VECTORS_OF_X + i];
    if NORM {
        let normed = four * norm[i];
        return vec4(pinned(normed.x), pinned(normed.y), pinned(normed.z), pinned(normed.w));
    }
    return four;
}

// Bits of the largest of four sizes: NaN above infinity above all numbers.
fn largest(four: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(four) & vec4(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// 127 / a rounded to nearest even, by long division: a driver's own division may be off by two units in the last place,
// and then the codes were not those of other devices. a is a normal number, and so is the result.
fn steps_in(bits: u32) -> f32 {
    let divisor = (bits & 0x007fffffu) | 0x00800000u;
    var rest = 127u << 17u;
    let below = rest < divisor;
    if below { rest *= 2u; }
    var quotient = 0u;
    for (var i = 0u; i < 24u; i++) {
        let fits = rest >= divisor;
        quotient = quotient * 2u + u32(fits);
        rest = (rest - select(0u, divisor, fits)) * 2u;
    }
    // rest is twice what is left: against the divisor, it says on which side of a half the quotient lies.
    quotient += u32(rest > divisor || (rest == divisor && (quotient & 1u) == 1u));
    let exponent = 127u + 127u + 6u - u32(below) - (bits >> 23u);
    return bitcast<f32>((exponent << 23u) + quotient - 0x00800000u);
}

// Finds the largest value of each block and the sum of squares of the row; every thread gets the RMSNorm factor.
fn measure(t: u32, m: u32) -> f32 {
    for (var b = t; b < BLOCKS; b += REDUCED) {
        atomicStore(&tops[b], 0u);
        atomicStore(&sums[b], 0i);
    }
    workgroupBarrier();
    var squares = 0.0f;
    for (var c = t; c * CHUNK < VECTORS_OF_X; c += REDUCED) {
        var top = 0u;
        for (var j = 0u; j < CHUNK; j++) {
            let i = c * CHUNK + j;
            top = max(top, largest(value(m, i)));
            if NORM {
                let four = x[m * VECTORS_OF_X + i];
                squares = fma(four.w, four.w, fma(four.z, four.z, fma(four.y, four.y, fma(four.x, four.x, squares))));
            }
        }
        atomicMax(&tops[c * CHUNK * 4u / BLOCK], top);
    }
    if !NORM {
        workgroupBarrier();
        return 1.0f;
    }
    return 1.0f / sqrt(sum_of_all(t, squares) / f32(WIDTH) + EPS);
}

fn scale_blocks(t: u32, factor: f32) {
    for (var b = t; b < BLOCKS; b += REDUCED) {
        let bits = atomicLoad(&tops[b]);
        let a = bitcast<f32>(bits);
        if bits >= INFINITE {
            scales[b] = bitcast<f32>(bits | 0x7fc00000u);
            atomicStore(&tops[b], 0u);
        } else if a < SILENT {
            scales[b] = 0.0f;
            atomicStore(&tops[b], 0u);
        } else {
            scales[b] = pinned(factor * a) / 127.0f;
            atomicStore(&tops[b], bitcast<u32>(steps_in(bits)));
        }
    }
}

fn codes(four: vec4<f32>, inverse: f32) -> vec4<i32> {
    // An infinite value times a zero inverse would be NaN.
    if inverse == 0.0f { return vec4(0i); }
    return vec4<i32>(clamp(round(four * inverse), vec4(-127.0f), vec4(127.0f)));
}

// Vector j (of four) that thread job c turns into words 4c to 4c + 3.
fn vector_of_job(c: u32, j: u32) -> u32 {
    if NIBBLES { return (4u * c + j) / QUADS * QUADS + quad_start((4u * c + j) % QUADS) / 4u; }
    if STEPS == 8u { return c / 2u * 8u + c % 2u + 2u * j; }
    return 4u * c + j;
}

fn write_codes(t: u32, m: u32) {
    for (var c = t; c * CHUNK < VECTORS_OF_X; c += REDUCED) {
        let b = c * CHUNK * 4u / BLOCK;
        let inverse = bitcast<f32>(atomicLoad(&tops[b]));
        var four: array<vec4<i32>, 4>;
        for (var j = 0u; j < 4u; j++) { four[j] = codes(value(m, vector_of_job(c, j)), inverse); }
        if STEPS >= 4u {
            four = array(
                vec4(four[0].x, four[1].x, four[2].x, four[3].x), vec4(four[0].y, four[1].y, four[2].y, four[3].y),
                vec4(four[0].z, four[1].z, four[2].z, four[3].z), vec4(four[0].w, four[1].w, four[2].w, four[3].w),
            );
        }
        var sum = 0i;
        for (var j = 0u; j < 4u; j++) {
            let word = pack4xI8(four[j]);
            sum += dot4I8Packed(word, 0x01010101u);
            put_codes(4u * c + j, word);
        }
        atomicAdd(&sums[b], sum);
    }
}

// Fills `scales`, `sums` and what put_codes writes.
fn quantise_row(t: u32, m: u32) {
    let factor = measure(t, m);
    workgroupBarrier();
    scale_blocks(t, factor);
    workgroupBarrier();
    write_codes(t, m);
    workgroupBarrier();
}
