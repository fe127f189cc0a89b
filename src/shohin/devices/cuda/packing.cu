// Rows of blocks, as they lie in a file, to tiles of 16 rows x 512 columns whose words are in the order in which the
// lanes of a warp feed them to the matrix units. packing.py says the same in NumPy.
//
// PLANES: 1 for Q1_0 (18 bytes for 128 weights), 2 for PQ2_0 (34 bytes); both begin with the f16 scale.

#if PLANES == 1
constexpr int BLOCK = 18;
#else
constexpr int BLOCK = 34;
#endif


__device__ unsigned half_word(const unsigned char* p) { return p[0] | p[1] << 8; }

__device__ unsigned word(const unsigned char* p) { return half_word(p) | half_word(p + 2) << 16; }

// Every second bit of a 32-bit word, gathered into 16.
__device__ unsigned every_second(unsigned x) {
    x &= 0x55555555u;
    x = (x | x >> 1) & 0x33333333u;
    x = (x | x >> 2) & 0x0f0f0f0fu;
    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0x0000ffffu;
}

__device__ unsigned plane_word(const unsigned char* block, int q, int plane) {
#if PLANES == 1
    return word(block + 2 + 4 * q);
#else
    // Plane 0 holds the high bits of the codes, plane 1 the low ones.
    unsigned first = word(block + 2 + 8 * q), second = word(block + 6 + 8 * q);
    return every_second(first >> (1 - plane)) | every_second(second >> (1 - plane)) << 16;
#endif
}

extern "C" __global__ void pack_tiles(const unsigned char* source, unsigned* bits, unsigned* scales, int rows, int groups,
                                      int chunks, int tiles) {
    long long total = (long long)tiles * chunks * 32;
    for (long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x; at < total;
         at += (long long)gridDim.x * blockDim.x) {
        int lane = at % 32;
        int chunk = at / 32 % chunks;
        int tile = at / 32 / chunks;
        int row = tile * 16 + lane / 4;
        unsigned* out = bits + (at / 32) * (PLANES * 2 * 32 * 4);
        for (int part = 0; part < PLANES * 2; part++)
            for (int item = 0; item < 4; item++) {
                int r = row + (item & 1) * 8, group = chunk * 4 + (part & 1) * 2 + (item >> 1);
                bool inside = r < rows && group < groups;
                const unsigned char* block = source + ((long long)r * groups + group) * BLOCK;
                out[(part * 32 + lane) * 4 + item] = inside ? plane_word(block, lane % 4, part >> 1) : 0;
            }
        int group = chunk * 4 + lane % 4;
        unsigned pair = 0;
        for (int half = 0; half < 2; half++)
            if (row + half * 8 < rows && group < groups)
                pair |= half_word(source + ((long long)(row + half * 8) * groups + group) * BLOCK) << (16 * half);
        scales[at] = pair;
    }
}
