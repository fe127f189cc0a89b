// Products are exact; float sums are rounded after every addition, in the order of K (the hardware's own order and
// rounding are not documented).
#include "matrix.hpp"

#include "vectors.hpp"

namespace emulator {

namespace {

// Both factors row by row: a word of a fragment is four bytes or two halves of one row of A or column of B, and the
// registers of a lane go first down 8 rows (A only), then right by half of K.
template <class C>
void gather(void* const* operands, unsigned (&a)[16][8], unsigned (&b)[8][8]) {
    for (int lane = 0; lane < 32; lane++) {
        const Product<C>& mine = *static_cast<Product<C>*>(operands[lane]);
        for (int i = 0; i < 4; i++) a[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = mine.a[i];
        for (int i = 0; i < 2; i++) b[lane / 4][lane % 4 + i * 4] = mine.b[i];
    }
}

template <float (&convert)(unsigned short)>
void do_halves(void* const* operands, unsigned) {
    unsigned words_a[16][8], words_b[8][8];
    gather<float>(operands, words_a, words_b);
    float a[16][16], b[16][8], sums[16][8];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) a[i][k] = convert(words_a[i][k / 2] >> (k % 2 * 16) & 0xffff);
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 16; k++) b[k][j] = convert(words_b[j][k / 2] >> (k % 2 * 16) & 0xffff);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = static_cast<Product<float>*>(operands[lane])->c[i];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) sums[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<Product<float>*>(operands[lane])->c[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

}  // namespace

extern "C" {

void emulator_do_bits(void* const* operands, unsigned) {
    unsigned a[16][4], b[8][4];
    for (int lane = 0; lane < 32; lane++) {
        const BitProduct& mine = *static_cast<BitProduct*>(operands[lane]);
        a[lane / 4][lane % 4] = mine.a0;
        a[lane / 4 + 8][lane % 4] = mine.a1;
        b[lane / 4][lane % 4] = mine.b;
    }
    for (int lane = 0; lane < 32; lane++) {
        BitProduct& mine = *static_cast<BitProduct*>(operands[lane]);
        for (int i = 0; i < 4; i++)
            for (int word = 0; word < 4; word++)
                mine.c[i] += __builtin_popcount(a[lane / 4 + i / 2 * 8][word] & b[lane % 4 * 2 + i % 2][word]);
    }
}

void emulator_do_bytes(void* const* operands, unsigned) {
    unsigned words_a[16][8], words_b[8][8];
    gather<int>(operands, words_a, words_b);
    signed char a[16][32], b[8][32];
    memcpy(a, words_a, sizeof a);
    memcpy(b, words_b, sizeof b);
    for (int lane = 0; lane < 32; lane++) {
        Product<int>& mine = *static_cast<Product<int>*>(operands[lane]);
        for (int i = 0; i < 4; i++) {
            const signed char *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            int sum = 0;
            for (int k = 0; k < 32; k++) sum += row[k] * column[k];
            mine.c[i] = int(unsigned(mine.c[i]) + unsigned(sum));
        }
    }
}

void emulator_do_halves(void* const* operands, unsigned mask) { do_halves<from_half>(operands, mask); }

void emulator_do_bfloats(void* const* operands, unsigned mask) { do_halves<from_bfloat>(operands, mask); }
}

}  // namespace emulator
