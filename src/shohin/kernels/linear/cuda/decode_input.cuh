// The input of the decode kernel: a warp quantises the chunk of 512 columns that it multiplies, or its half of it where
// two warps or more multiply the chunk, into the form that their matrix units take.
//
// Lane l = 4 c + w has four values of each group of 128: 32 w + 4 c and the next three.
#pragma once

#include "linear/cuda/quantise.cuh"

constexpr int GROUPS = K / 128;
constexpr int CHUNKS = (GROUPS + 3) / 4;
// Groups of 128 with those that fill up the last chunk; these have codes 0 and scale 0.
constexpr int PADDED = 4 * CHUNKS;
// Warps that quantise a chunk, and groups of each.
constexpr int HALVES = SHARES > 1 ? 2 : 1, OWN = 4 / HALVES;
// Columns of bits stay in the registers of the only warp that needs them.
constexpr bool ALONE = BINARY && SHARES == 1;
// Added to a sum of codes so that 16 bits hold it without a sign.
constexpr unsigned BIAS = 0x8000u;

using Values = float[OWN][4];

// Groups from ``first`` on.
__device__ __forceinline__ void load_groups(Values& values, const float* row, int first) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < OWN; g++) {
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (GROUPS % 4 == 0 || first + g < GROUPS)
            four = *(const float4*)(row + (first + g) * 128 + lane % 4 * 32 + lane / 4 * 4);
        values[g][0] = four.x, values[g][1] = four.y, values[g][2] = four.z, values[g][3] = four.w;
    }
}

// Groups of one row. words: codes of this lane, one a group; offset, scale: of group lane % OWN. The offset is BIAS in
// both halves less 65,537 times the group's sum of codes: what turns sums of bits into sums of weights.
struct Codes {
    unsigned words[OWN];
    unsigned offset;
    float scale;
};

__device__ __forceinline__ unsigned own_group(const unsigned (&values)[OWN]) {
    unsigned low = threadIdx.x & 1 ? values[1] : values[0], high = threadIdx.x & 1 ? values[OWN - 1] : values[OWN - 2];
    return threadIdx.x & 2 ? high : low;
}

__device__ __forceinline__ Codes quantise_groups(const Values& v) {
    unsigned peaks[OWN], sums[OWN];
#pragma unroll
    for (int g = 0; g < OWN; g++) peaks[g] = __reduce_max_sync(WHOLE_WARP, peak_of(v[g]));
    // A division a lane: its own group's.
    unsigned peak = own_group(peaks);
    float inverse = group_inverse(peak);
    Codes made;
#pragma unroll
    for (int g = 0; g < OWN; g++) {
        made.words[g] = four_codes(v[g], __shfl_sync(WHOLE_WARP, inverse, g));
        sums[g] = (unsigned)__reduce_add_sync(WHOLE_WARP, __dp4a((int)made.words[g], 0x01010101, 0));
    }
    made.offset = BIAS * 0x10001u - own_group(sums) * 0x10001u;
    made.scale = group_scale(peak);
    return made;
}

// The sums of squares of the groups: lanes exchange groups for as long as they have several.
__device__ __forceinline__ void put_squares(float (&squares)[PADDED], const Values& x, int first) {
    int lane = threadIdx.x % 32;
    float sums[OWN];
#pragma unroll
    for (int g = 0; g < OWN; g++) sums[g] = four_squares(x[g]);
#pragma unroll
    for (int count = OWN / 2, step = 4; count > 0; count /= 2, step *= 2)
#pragma unroll
        for (int g = 0; g < count; g++) {
            bool upper = lane & step;
            float kept = upper ? sums[g + count] : sums[g], given = upper ? sums[g] : sums[g + count];
            sums[g] = __fadd_rn(kept, __shfl_xor_sync(WHOLE_WARP, given, step));
        }
    float sum = sums[0];
    if (OWN == 2) sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, 8));
    sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, 16));
    sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(WHOLE_WARP, sum, 2));
    int group = OWN == 2 ? lane / 4 : (lane & 4) / 2 + (lane & 8) / 8;
    if (lane % 4 == 0 && lane < 4 * OWN) squares[first + group] = sum;
}

#if BINARY
// What 1-bit matrix units multiply by: column c of the product is bit plane 4 c1 + 2 c2 + c0 of the row, c2 c1 c0 being
// the bits of c. Lane 4 c + w has word w of that plane, for each group.
struct Columns {
    unsigned words[4];
    unsigned offset;
    float scale;
};

// Four codes, 4 x 8 bits, transposed: byte p has plane p in its low half and plane p + 4 in its high one.
__device__ __forceinline__ unsigned four_planes(unsigned x) {
    unsigned t = (x ^ (x >> 7)) & 0x00aa00aau;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000ccccu;
    return x ^ t ^ (t << 14);
}

// The eight lanes of a word exchange codes for planes, in three steps that halve the planes and double the codes. Two
// groups share a register, half a byte each.
__device__ __forceinline__ void exchange_planes(unsigned (&words)[OWN]) {
    int lane = threadIdx.x % 32;
    bool first = lane & 8, second = lane & 16, third = lane & 4;
    unsigned keep = first ? (second ? 0x3726u : 0x1504u) : (second ? 0x7362u : 0x5140u);
    unsigned give = first ? (second ? 0x1504u : 0x3726u) : (second ? 0x5140u : 0x7362u);
    unsigned keep_half = third ? (second ? 0x3276u : 0x7632u) : (second ? 0x1054u : 0x5410u);
    unsigned give_half = third ? (second ? 0x1054u : 0x5410u) : (second ? 0x3276u : 0x7632u);
#pragma unroll
    for (int g = 0; g < OWN; g += 2) {
        unsigned a = four_planes(words[g]), b = four_planes(words[g + 1]);
        unsigned low = (a & 0x0f0f0f0fu) | (b << 4 & 0xf0f0f0f0u), high = (a >> 4 & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u);
        unsigned own = first ? high : low, other = __shfl_xor_sync(WHOLE_WARP, first ? low : high, 8);
        unsigned more = __shfl_xor_sync(WHOLE_WARP, __byte_perm(own, other, give), 16);
        own = __byte_perm(own, other, keep);
        other = __shfl_xor_sync(WHOLE_WARP, __byte_perm(own, more, give_half), 4);
        own = __byte_perm(own, more, keep_half);
        unsigned even = third ? other : own, odd = third ? own : other;
        words[g] = (even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u);
        words[g + 1] = (even >> 4 & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u);
    }
}

// Where warps that share a chunk leave their halves.
struct Input {
    uint4 words[CAPACITY][ALONE ? 1 : CHUNKS][32];
    unsigned offsets[CAPACITY][ALONE ? 4 : PADDED];
    float scales[CAPACITY][ALONE ? 4 : PADDED];
};

__device__ __forceinline__ void put_half(Input& input, int m, int chunk, int half, const Codes& codes) {
    int lane = threadIdx.x % 32, group = chunk * 4 + half * 2 + lane;
    ((uint2*)&input.words[m][chunk][lane])[half] = make_uint2(codes.words[0], codes.words[1]);
    if (lane < 2) input.offsets[m][group] = codes.offset, input.scales[m][group] = codes.scale;
}

__device__ __forceinline__ Columns load_columns(const Input& input, int m, int chunk) {
    int lane = threadIdx.x % 32, group = chunk * 4 + lane % 4;
    uint4 words = input.words[m][chunk][lane];
    return {{words.x, words.y, words.z, words.w}, input.offsets[m][group], input.scales[m][group]};
}
#else
// What int8 matrix units multiply by: a chunk of all rows, in shared memory. Rows begin in different banks.
struct Staged {
    unsigned codes[CAPACITY][132];
    unsigned offsets[CAPACITY][4];
    float scales[CAPACITY][4];
};

__device__ __forceinline__ void put_row(Staged& rows, int m, int half, const Codes& codes) {
    int lane = threadIdx.x % 32, first = half * OWN;
#pragma unroll
    for (int g = 0; g < OWN; g++) rows.codes[m][(first + g) * 32 + lane % 4 * 8 + lane / 4] = codes.words[g];
    if (lane < OWN) rows.offsets[m][first + lane] = codes.offset, rows.scales[m][first + lane] = codes.scale;
}

// Lane 4 m + q turns its eight words of row m, for each group of this warp, from four codes side by side into what it
// feeds to the matrix units: word i has codes 32 q + i + 8 b, b = 0 to 3.
__device__ __forceinline__ void arrange(Staged& rows, int half) {
    int lane = threadIdx.x % 32, m = lane / 4;
    if (m >= CAPACITY) return;
#pragma unroll
    for (int g = 0; g < OWN; g++) {
        uint4* words = (uint4*)&rows.codes[m][(half * OWN + g) * 32 + lane % 4 * 8];
        uint4 low = words[0], high = words[1];
        // Words 0, 2, 4, 6 have codes 0 to 3 of each eight, the others 4 to 7.
        const unsigned natural[2][4] = {{low.x, low.z, high.x, high.z}, {low.y, low.w, high.y, high.w}};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const unsigned(&n)[4] = natural[h];
            unsigned a = __byte_perm(n[0], n[1], 0x5140), b = __byte_perm(n[2], n[3], 0x5140);
            unsigned c = __byte_perm(n[0], n[1], 0x7362), d = __byte_perm(n[2], n[3], 0x7362);
            words[h] = make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
                                  __byte_perm(c, d, 0x7632));
        }
    }
}
#endif
