// Block formats as 32 weights at a time: a piece is int8 codes in order of K and the scales (and minima) that turn them
// into weights, weight = scale * code + minimum. Layouts and the order of float operations: shohin/formats/blocks.
#pragma once

#include "ptx.cuh"

using Bytes = const unsigned char*;

// TERMS: scales of a piece. codes: four a word, the first lowest.
template <int TERMS>
struct Piece {
    unsigned codes[8];
    float scale[TERMS];
    float minimum[TERMS];
};

__device__ __forceinline__ float half_at(Bytes p) { return half_to_float(*reinterpret_cast<const unsigned short*>(p)); }

// COUNT words from an address that is a multiple of ALIGNMENT (2, 4 or 16). From an odd pair of bytes the words lie across
// the aligned ones; neither end is read past.
template <int ALIGNMENT, int COUNT>
__device__ __forceinline__ void load_words(unsigned (&words)[COUNT], Bytes p) {
    if constexpr (ALIGNMENT == 16) {
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            uint4 v = reinterpret_cast<const uint4*>(p)[i];
            words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
        }
    } else if constexpr (ALIGNMENT == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) words[i] = reinterpret_cast<const unsigned*>(p)[i];
    } else {
        bool across = (reinterpret_cast<unsigned long long>(p) & 2) != 0;
        const unsigned* base = reinterpret_cast<const unsigned*>(across ? p - 2 : p);
        unsigned last = across ? *reinterpret_cast<const unsigned short*>(p + 4 * COUNT - 2) : 0;
        unsigned held = base[0];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            unsigned next = i + 1 < COUNT ? base[i + 1] : last;
            words[i] = across ? __byte_perm(held, next, 0x5432) : held;
            held = next;
        }
    }
}

// Each byte below 128 minus OFFSET, as int8.
template <unsigned OFFSET>
__device__ __forceinline__ unsigned lowered(unsigned bytes) {
    return ((bytes | 0x80808080u) - OFFSET * 0x01010101u) ^ 0x80808080u;
}

// Four bits as the lowest bits of four bytes.
__device__ __forceinline__ unsigned spread_bits(unsigned four) { return (four * 0x00204081u) & 0x01010101u; }

// Four pairs of bits as the lowest bits of four bytes.
__device__ __forceinline__ unsigned spread_pairs(unsigned byte) {
    return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
}

// 16 bytes of nibbles: weight j in the low half of byte j, weight j + 16 in its high half.
template <int ALIGNMENT>
__device__ __forceinline__ void split_nibbles(unsigned (&codes)[8], Bytes p) {
    unsigned words[4];
    load_words<ALIGNMENT>(words, p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        codes[i] = words[i] & 0x0f0f0f0fu;
        codes[i + 4] = words[i] >> 4 & 0x0f0f0f0fu;
    }
}

__device__ __forceinline__ void add_fifth_bits(unsigned (&codes)[8], unsigned bits) {
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] |= spread_bits(bits >> 4 * i & 15) << 4;
}

// RUN: weights under one scale and one activation scale, the runs of linear/reference.py. read: piece s of a block.
struct Q4_0 {
    static constexpr int BLOCK = 32, BYTES = 18, RUN = 32;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<1>& piece, Bytes block, int) {
        piece.scale[0] = half_at(block);
        split_nibbles<2>(piece.codes, block + 2);
        for (unsigned& word : piece.codes) word = lowered<8>(word);
    }
};

struct Q4_1 {
    static constexpr int BLOCK = 32, BYTES = 20, RUN = 32;
    static constexpr bool AFFINE = true;
    __device__ static void read(Piece<1>& piece, Bytes block, int) {
        piece.scale[0] = half_at(block);
        piece.minimum[0] = half_at(block + 2);
        split_nibbles<4>(piece.codes, block + 4);
    }
};

struct Q5_0 {
    static constexpr int BLOCK = 32, BYTES = 22, RUN = 32;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<1>& piece, Bytes block, int) {
        piece.scale[0] = half_at(block);
        unsigned fifth[1];
        load_words<2>(fifth, block + 2);
        split_nibbles<2>(piece.codes, block + 6);
        add_fifth_bits(piece.codes, fifth[0]);
        for (unsigned& word : piece.codes) word = lowered<16>(word);
    }
};

struct Q5_1 {
    static constexpr int BLOCK = 32, BYTES = 24, RUN = 32;
    static constexpr bool AFFINE = true;
    __device__ static void read(Piece<1>& piece, Bytes block, int) {
        piece.scale[0] = half_at(block);
        piece.minimum[0] = half_at(block + 2);
        split_nibbles<4>(piece.codes, block + 8);
        add_fifth_bits(piece.codes, *reinterpret_cast<const unsigned*>(block + 4));
    }
};

struct Q8_0 {
    static constexpr int BLOCK = 32, BYTES = 34, RUN = 32;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<1>& piece, Bytes block, int) {
        piece.scale[0] = half_at(block);
        load_words<2>(piece.codes, block + 2);
    }
};

struct Q2_0 {
    static constexpr int BLOCK = 64, BYTES = 18, RUN = 64;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<1>& piece, Bytes block, int s) {
        piece.scale[0] = half_at(block);
        unsigned words[2];
        load_words<2>(words, block + 2 + 8 * s);
#pragma unroll
        for (int i = 0; i < 8; i++) piece.codes[i] = lowered<1>(spread_pairs(words[i / 4] >> 8 * (i % 4) & 255));
    }
};

// 64 bytes of pairs: pair s % 4 of the 32 bytes of half s / 4 makes piece s.
template <int ALIGNMENT>
__device__ __forceinline__ void split_pairs(unsigned (&codes)[8], Bytes pairs, int s) {
    load_words<ALIGNMENT>(codes, pairs + 32 * (s / 4));
    for (unsigned& word : codes) word = word >> 2 * (s % 4) & 0x03030303u;
}

// Weight = (d * small) * code - (m * least), small and least whole numbers of a group.
template <int TERMS>
__device__ __forceinline__ void set_affine(Piece<TERMS>& piece, int term, Bytes head, unsigned small, unsigned least) {
    piece.scale[term] = __fmul_rn(half_at(head), (float)small);
    piece.minimum[term] = -__fmul_rn(half_at(head + 2), (float)least);
}

struct Q2_K {
    static constexpr int BLOCK = 256, BYTES = 84, RUN = 16;
    static constexpr bool AFFINE = true;
    __device__ static void read(Piece<2>& piece, Bytes block, int s) {
#pragma unroll
        for (int term = 0; term < 2; term++) {
            unsigned small = block[2 * s + term];
            set_affine(piece, term, block + 80, small & 15, small >> 4);
        }
        split_pairs<4>(piece.codes, block + 16, s);
    }
};

struct Q3_K {
    static constexpr int BLOCK = 256, BYTES = 110, RUN = 16;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<2>& piece, Bytes block, int s) {
        float d = half_at(block + 108);
#pragma unroll
        for (int term = 0; term < 2; term++) {
            int group = 2 * s + term;
            unsigned low = block[96 + group % 8] >> 4 * (group / 8) & 15;
            unsigned high = block[104 + group % 4] >> 2 * (group / 4) & 3;
            piece.scale[term] = __fmul_rn(d, (float)((int)(low | high << 4) - 32));
        }
        unsigned high[8];
        load_words<2>(high, block);
        split_pairs<2>(piece.codes, block + 32, s);
#pragma unroll
        for (int i = 0; i < 8; i++) piece.codes[i] = lowered<4>(piece.codes[i] | (high[i] >> s & 0x01010101u) << 2);
    }
};

// The six-bit scale and minimum of group s, from twelve bytes of a block.
__device__ __forceinline__ void set_six_bits(Piece<1>& piece, Bytes block, int s) {
    Bytes small = block + 4;
    int i = s % 4;
    unsigned scale = small[i], least = small[4 + i], more = small[8 + i];
    if (s < 4)
        set_affine(piece, 0, block, scale & 63, least & 63);
    else
        set_affine(piece, 0, block, (more & 15) | scale >> 6 << 4, more >> 4 | least >> 6 << 4);
}

struct Q4_K {
    static constexpr int BLOCK = 256, BYTES = 144, RUN = 32;
    static constexpr bool AFFINE = true;
    __device__ static void read(Piece<1>& piece, Bytes block, int s) {
        set_six_bits(piece, block, s);
        load_words<16>(piece.codes, block + 16 + 32 * (s / 2));
        for (unsigned& word : piece.codes) word = word >> 4 * (s % 2) & 0x0f0f0f0fu;
    }
};

struct Q5_K {
    static constexpr int BLOCK = 256, BYTES = 176, RUN = 32;
    static constexpr bool AFFINE = true;
    __device__ static void read(Piece<1>& piece, Bytes block, int s) {
        set_six_bits(piece, block, s);
        unsigned fifth[8];
        load_words<16>(fifth, block + 16);
        load_words<16>(piece.codes, block + 48 + 32 * (s / 2));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            unsigned low = piece.codes[i] >> 4 * (s % 2) & 0x0f0f0f0fu;
            piece.codes[i] = low | (fifth[i] >> s & 0x01010101u) << 4;
        }
    }
};

struct Q6_K {
    static constexpr int BLOCK = 256, BYTES = 210, RUN = 16;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<2>& piece, Bytes block, int s) {
        float d = half_at(block + 208);
#pragma unroll
        for (int term = 0; term < 2; term++)
            piece.scale[term] = __fmul_rn(d, (float)(signed char)block[192 + 2 * s + term]);
        unsigned low[8];
        load_words<2>(low, block + 64 * (s / 4) + 32 * (s % 2));
        split_pairs<2>(piece.codes, block + 128, s);
#pragma unroll
        for (int i = 0; i < 8; i++)
            piece.codes[i] = lowered<32>((low[i] >> 4 * (s % 4 / 2) & 0x0f0f0f0fu) | piece.codes[i] << 4);
    }
};

struct Q8_K {
    static constexpr int BLOCK = 256, BYTES = 292, RUN = 128;
    static constexpr bool AFFINE = false;
    __device__ static void read(Piece<1>& piece, Bytes block, int s) {
        piece.scale[0] = *reinterpret_cast<const float*>(block);
        load_words<4>(piece.codes, block + 4 + 32 * s);
    }
};

// What follows from a format's numbers.
template <class F>
struct Pieces {
    static constexpr int TERMS = F::RUN < 32 ? 32 / F::RUN : 1;
    static constexpr int A_BLOCK = F::BLOCK / 32;
    using Type = Piece<TERMS>;

    // Piece ``index`` of a row of blocks.
    __device__ __forceinline__ static void read(Type& piece, Bytes row, int index) {
        F::read(piece, row + (long long)(index / A_BLOCK) * F::BYTES, index % A_BLOCK);
    }

    // Weights 4i to 4i + 3 of a piece as floats, each the float32 that the format's decoder gives.
    __device__ __forceinline__ static void decode(float (&weights)[4], const Type& piece, int i) {
        constexpr unsigned selectors[4] = {0x7540, 0x7541, 0x7542, 0x7543};
        int term = TERMS == 1 ? 0 : i / (8 / TERMS);
        // A byte in the low bits of 2^23 is the number 2^23 + byte.
        unsigned raised = piece.codes[i] ^ 0x80808080u;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            float code = __uint_as_float(__byte_perm(raised, 0x4b000000u, selectors[b])) - 8388736.0f;
            float weight = __fmul_rn(code, piece.scale[term]);
            weights[b] = F::AFFINE ? __fadd_rn(weight, piece.minimum[term]) : weight;
        }
    }
};
