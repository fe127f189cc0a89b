// A draw among the tokens that top_k, top_p and min_p leave, as sample/reference.py has it. Candidates stand in one order,
// larger logits first and lower ids first among equals; each filter keeps the head of it, so one ``Cut`` says who is left.
// exp(x - peak) is kept as a whole multiple of 2^-SHARE_BITS: sums are exact in any order, so atomics are deterministic.
//
// Cuts are found in three steps: candidates are counted and weighed in bins of their distance from the peak; those of the
// bin where the filter ends are listed; among these the bytes of (logit, id) are narrowed down one after the other.
//
// Macros: BINS, LISTED (room of a list), BIASES (biased ids of a row), SHARE_BITS.

#include "ptx.cuh"
#include "step.cuh"

using U64 = unsigned long long;

constexpr int THREADS = 256, PER_THREAD = 8, SHARE = THREADS * PER_THREAD;
constexpr unsigned EVERYBODY = 0xffffffffu;
constexpr int PICKED = 0, GREEDY = 1, SAMPLED = 2;
// Of a nat; the last bin takes everything further from the peak.
constexpr double BINS_A_NAT = 64.0;
// Bytes of a logit's place, then those of the id.
constexpr int LOGIT_BYTES = 8, LEVELS = LOGIT_BYTES + 3;

// As settings.py packs them.
struct Settings {
    double temperature, top_p, least, repetition, presence, frequency;
    U64 seed, index;
    unsigned choice;
    int top_k, slot, biases, kind, unused;
};
static_assert(sizeof(Settings) == 88, "settings.py");

struct Bias {
    double value;
    int id, unused;
};

// Where a search stands: it looks for the candidate at which the weight of the order's head reaches ``goal``; ``before``
// is what lies ahead of the bin. mass: the shares ahead of the bin, whatever the weight is.
struct Search {
    U64 goal, before, mass;
    int bin, unused;
};

// cut_logit, cut_id: the last candidate that is left.
struct State {
    double peak, cut_logit;
    int cut_id, unused;
    Search search;
};
static_assert(sizeof(State) <= 64, "cuda.py");

// Zero before the first launch and after the last.
struct Counters {
    U64 mass[BINS];
    unsigned count[BINS];
    unsigned listed, arrived;
};
static_assert(sizeof(Counters) == 12 * BINS + 8, "cuda.py");

struct Tables {
    const float* logits;
    Settings* settings;
    const Bias* biases;
    int* history;
    int* ids;
    const int* status;
    uint4* found;
    State* state;
    int* listed;
    Counters* counters;
    const int* step;
    int vocabulary, width;
};

// One row, seen by one block.
struct Row {
    Settings set;
    const float* logits;
    const Bias* biases;
    int* history;
    uint4* found;
    State* state;
    int* listed;
    Counters* counters;
    int vocabulary;
    bool penalised;

    __device__ __forceinline__ bool filtered() const { return set.top_k > 0 || set.top_p < 1.0; }

    __device__ __forceinline__ double biased(int id, double x) const {
        int low = 0, high = set.biases;
        while (low < high) {
            int middle = (low + high) / 2;
            if (biases[middle].id < id)
                low = middle + 1;
            else
                high = middle;
        }
        return low < set.biases && biases[low].id == id ? x + biases[low].value : x;
    }

    // A logit after penalties and bias.
    __device__ __forceinline__ double logit(int id) const {
        double x = logits[id];
        if (!penalised) return x;
        int seen = history[id], count = seen >> 1;
        if (seen != 0) x = x > 0.0 ? x / set.repetition : x * set.repetition;
        if (count > 0) x -= set.presence + set.frequency * (double)count;
        return set.biases > 0 ? biased(id, x) : x;
    }
};

// Whether anything is to be done for a row, and the row.
__device__ __forceinline__ bool open_row(Row& row, const Tables& t) {
    int i = blockIdx.y;
    if (i >= step_wanted(t.step) || t.settings[i].kind == PICKED || t.status[i] != 0) return false;
    row.set = t.settings[i];
    row.logits = t.logits + (long long)i * t.width;
    row.biases = t.biases + (long long)i * BIASES;
    row.history = t.history + (long long)row.set.slot * t.vocabulary;
    row.found = t.found + (long long)i * gridDim.x;
    row.state = t.state + i;
    row.listed = t.listed + (long long)i * LISTED;
    row.counters = t.counters + i;
    row.vocabulary = t.vocabulary;
    row.penalised = row.set.repetition != 1.0 || row.set.presence != 0.0 || row.set.frequency != 0.0 || row.set.biases > 0;
    return true;
}

// Larger for larger logits.
__device__ __forceinline__ U64 place_of(double logit) {
    U64 bits = (U64)__double_as_longlong(logit + 0.0);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

__device__ __forceinline__ double logit_at(U64 place) {
    return __longlong_as_double((long long)(place >> 63 ? place & ~(1ull << 63) : ~place));
}

__device__ __forceinline__ U64 share_of(double distance) { return (U64)rint(ldexp(exp(distance), SHARE_BITS)); }

__device__ __forceinline__ int bin_of(double peak, double logit) {
    double bin = (peak - logit) * BINS_A_NAT;
    return bin < (double)(BINS - 1) ? (int)bin : BINS - 1;
}

__device__ __forceinline__ bool left_over(const State& s, const Settings& set, double logit, int id) {
    return logit >= s.peak + set.least && (logit > s.cut_logit || (logit == s.cut_logit && id <= s.cut_id));
}

// Whether this block is the last of the row's to come here; what the others wrote can be read then.
__device__ __forceinline__ bool last_to_arrive(Counters* counters) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&counters->arrived, 1u) == gridDim.x - 1;
        if (last) counters->arrived = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// The sum of what the threads before this one have; total: of all.
__device__ __forceinline__ U64 sum_before(U64 mine, U64& total) {
    __shared__ U64 warps[THREADS / 32];
    int lane = threadIdx.x % 32;
    U64 sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        U64 other = __shfl_up_sync(EVERYBODY, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == 31) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    U64 ahead = 0;
    total = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        if (i < (int)threadIdx.x / 32) ahead += warps[i];
        total += warps[i];
    }
    return ahead + sum - mine;
}

// The bin where the search's goal is reached. by_count: candidates weigh 1, not their shares.
__device__ __forceinline__ void find_bin(const Row& row, bool by_count, U64 goal) {
    constexpr int EACH = BINS / THREADS;
    const Counters& c = *row.counters;
    U64 weight[EACH], mass[EACH], weights = 0, masses = 0, total;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mass[i] = c.mass[threadIdx.x * EACH + i];
        weight[i] = by_count ? c.count[threadIdx.x * EACH + i] : mass[i];
        weights += weight[i], masses += mass[i];
    }
    U64 before = sum_before(weights, total), ahead = sum_before(masses, total);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (before < goal && goal <= before + weight[i])
            row.state->search = {goal, before, ahead, (int)threadIdx.x * EACH + i, 0};
        before += weight[i], ahead += mass[i];
    }
    __syncthreads();
}

__device__ __forceinline__ U64 mass_of_all(const Row& row) {
    U64 mine = 0, total;
    for (int i = threadIdx.x; i < BINS; i += THREADS) mine += row.counters->mass[i];
    sum_before(mine, total);
    return total;
}

// The weight that the head of the order must reach under top_p; at least that of the first.
__device__ __forceinline__ U64 top_p_goal(const Row& row, U64 total) {
    double goal = ceil(row.set.top_p * (double)total);
    U64 whole = goal < (double)total ? (U64)goal : total;
    return whole > 0 ? whole : 1;
}

__device__ __forceinline__ void clear_bins(Counters* c) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) c->mass[i] = 0, c->count[i] = 0;
}

// The best logit after penalties: of rows without any, that of the id that ``pick`` found.
__device__ __forceinline__ void find_peak(const Row& row, int* id) {
    __shared__ U64 places[THREADS / 32];
    __shared__ int owners[THREADS / 32];
    U64 place = 0;
    int owner = 0x7fffffff;
    auto take = [&](U64 other, int theirs) {
        if (other > place || (other == place && theirs < owner)) place = other, owner = theirs;
    };
    auto over_block = [&]() {
        for (int step = 16; step > 0; step /= 2) {
            U64 other = __shfl_xor_sync(EVERYBODY, place, step);
            int theirs = __shfl_xor_sync(EVERYBODY, owner, step);
            take(other, theirs);
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) places[threadIdx.x / 32] = place, owners[threadIdx.x / 32] = owner;
        __syncthreads();
        for (int i = 0; i < THREADS / 32; i++) take(places[i], owners[i]);
    };
    for (int i = 0; i < PER_THREAD; i++) {
        int at = blockIdx.x * SHARE + i * THREADS + threadIdx.x;
        if (at < row.vocabulary) take(place_of(row.logit(at)), at);
    }
    over_block();
    if (threadIdx.x == 0)
        row.found[blockIdx.x] = make_uint4((unsigned)place, (unsigned)(place >> 32), (unsigned)owner, 0);
    if (!last_to_arrive(row.counters)) return;
    place = 0, owner = 0x7fffffff;
    for (int i = threadIdx.x; i < (int)gridDim.x; i += THREADS) {
        uint4 theirs = __ldcg(&row.found[i]);
        take((U64)theirs.y << 32 | theirs.x, (int)theirs.z);
    }
    over_block();
    if (threadIdx.x != 0) return;
    row.state->peak = logit_at(place);
    if (row.set.kind == GREEDY) *id = owner;
}

#define PARAMETERS                                                                                                  \
    const float *logits, Settings *settings, const Bias *biases, int *history, int *ids, const int *status,        \
        uint4 *found, State *state, int *listed, Counters *counters, const int *step, int vocabulary, int width
#define OPEN_ROW                                                                                                    \
    let_next_start();                                                                                               \
    wait_for_previous();                                                                                            \
    Tables tables = {logits, settings, biases, history, ids, status, found, state, listed, counters, step,          \
                     vocabulary, width};                                                                            \
    Row row;                                                                                                        \
    if (!open_row(row, tables)) return;

extern "C" __global__ void __launch_bounds__(THREADS) peak(PARAMETERS) {
    OPEN_ROW
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        row.state->cut_logit = __longlong_as_double((long long)0xfff0000000000000ull);
        row.state->cut_id = 0x7fffffff;
        if (!row.penalised) row.state->peak = row.logits[ids[blockIdx.y]];
    }
    if (row.penalised) find_peak(row, ids + blockIdx.y);
}

// Counts and shares of all candidates by bin.
extern "C" __global__ void __launch_bounds__(THREADS) bins(PARAMETERS) {
    __shared__ U64 mass[BINS];
    __shared__ unsigned count[BINS];
    OPEN_ROW
    if (row.set.kind != SAMPLED || !row.filtered()) return;
    for (int i = threadIdx.x; i < BINS; i += THREADS) mass[i] = 0, count[i] = 0;
    __syncthreads();
    double top = row.state->peak;
    for (int i = 0; i < PER_THREAD; i++) {
        int id = blockIdx.x * SHARE + i * THREADS + threadIdx.x;
        if (id >= row.vocabulary) break;
        double x = row.logit(id);
        atomicAdd(&mass[bin_of(top, x)], share_of(x - top));
        atomicAdd(&count[bin_of(top, x)], 1u);
    }
    __syncthreads();
    Counters* all = row.counters;
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        if (count[i] == 0) continue;
        atomicAdd(&all->mass[i], mass[i]);
        atomicAdd(&all->count[i], count[i]);
    }
    if (!last_to_arrive(all)) return;
    bool by_count = row.set.top_k > 0;
    find_bin(row, by_count, by_count ? (U64)row.set.top_k : top_p_goal(row, mass_of_all(row)));
    // The bins are needed once more where top_p looks at what top_k left.
    if (!by_count || row.set.top_p >= 1.0) clear_bins(all);
}

// Byte ``level`` of a candidate's place, smaller for better ones.
__device__ __forceinline__ int byte_at(U64 place, int id, int level) {
    return level < LOGIT_BYTES ? (int)(~place >> 8 * (LOGIT_BYTES - 1 - level) & 255)
                               : id >> 8 * (LEVELS - 1 - level) & 255;
}

// Whether the first ``level`` bytes are those that the search has settled on.
__device__ __forceinline__ bool agrees(U64 place, int id, U64 settled, int settled_id, int level) {
    if (level == 0) return true;
    if (level <= LOGIT_BYTES) return (place ^ settled) >> 8 * (LOGIT_BYTES - level) == 0;
    return place == settled && (id ^ settled_id) >> 8 * (LEVELS - level) == 0;
}

// The last candidate of the head, among those of the search's bin; returns the shares of the head.
__device__ __forceinline__ U64 narrow(const Row& row, bool by_count) {
    __shared__ U64 weights[THREADS], masses[THREADS];
    __shared__ U64 settled, before, ahead;
    __shared__ int settled_id, members;
    double top = row.state->peak;
    Search search = row.state->search;
    int listed = (int)row.counters->listed, count = listed <= LISTED ? listed : row.vocabulary;
    if (threadIdx.x == 0) settled = 0, settled_id = 0, before = search.before, ahead = search.mass, members = 0;
    for (int level = 0; level <= LEVELS; level++) {
        __syncthreads();
        bool found = members == 1;
        int id_here = settled_id;
        U64 place_here = settled, before_here = before;
        __shared__ unsigned counts[THREADS];
        weights[threadIdx.x] = masses[threadIdx.x] = 0, counts[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            int id = listed <= LISTED ? row.listed[i] : i;
            double x = row.logit(id);
            U64 place = place_of(x);
            if (bin_of(top, x) != search.bin || !agrees(place, id, place_here, id_here, level)) continue;
            if (found) {
                row.state->cut_logit = x;
                row.state->cut_id = id;
                masses[0] = share_of(x - top);
                continue;
            }
            int byte = byte_at(place, id, level);
            U64 share = share_of(x - top);
            atomicAdd(&masses[byte], share);
            atomicAdd(&weights[byte], by_count ? 1ull : share);
            atomicAdd(&counts[byte], 1u);
        }
        __syncthreads();
        if (found) break;
        U64 total, mine = weights[threadIdx.x];
        U64 weight_before = before_here + sum_before(mine, total), mass_before = ahead + sum_before(masses[threadIdx.x], total);
        __syncthreads();
        if (weight_before < search.goal && search.goal <= weight_before + mine) {
            before = weight_before, ahead = mass_before, members = (int)counts[threadIdx.x];
            U64 byte = threadIdx.x;
            if (level < LOGIT_BYTES)
                settled = place_here | (~byte & 255) << 8 * (LOGIT_BYTES - 1 - level);
            else
                settled_id = id_here | (int)byte << 8 * (LEVELS - 1 - level);
        }
    }
    U64 head = ahead + masses[0];
    __syncthreads();
    return head;
}

// The end of top_k (round 0), then of top_p (round 1).
extern "C" __global__ void __launch_bounds__(THREADS) border(PARAMETERS, int round) {
    OPEN_ROW
    if (row.set.kind != SAMPLED || !(round == 0 ? row.set.top_k > 0 : row.set.top_p < 1.0)) return;
    Counters* all = row.counters;
    double top = row.state->peak;
    int bin = row.state->search.bin;
    for (int i = 0; i < PER_THREAD; i++) {
        int id = blockIdx.x * SHARE + i * THREADS + threadIdx.x;
        if (id >= row.vocabulary) break;
        if (bin_of(top, row.logit(id)) != bin) continue;
        unsigned at = atomicAdd(&all->listed, 1u);
        if (at < LISTED) row.listed[at] = id;
    }
    if (!last_to_arrive(all)) return;
    U64 head = narrow(row, round == 0);
    if (threadIdx.x == 0) all->listed = 0;
    if (round == 0 && row.set.top_p < 1.0) {
        find_bin(row, false, top_p_goal(row, head));
        clear_bins(all);
    }
}

// Philox4x32-10, Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: 53 random bits.
__device__ __forceinline__ U64 random_bits(const Settings& set) {
    unsigned a = (unsigned)set.index, b = (unsigned)(set.index >> 32), c = set.choice, d = 0;
    unsigned left = (unsigned)set.seed, right = (unsigned)(set.seed >> 32);
#pragma unroll
    for (int i = 0; i < 10; i++) {
        U64 first = (U64)0xD2511F53u * a, second = (U64)0xCD9E8D57u * c;
        a = (unsigned)(second >> 32) ^ b ^ left, b = (unsigned)second;
        c = (unsigned)(first >> 32) ^ d ^ right, d = (unsigned)first;
        left += 0x9E3779B9u, right += 0xBB67AE85u;
    }
    return (U64)(a >> 5) << 26 | b >> 6;
}

// floor(bits / 2^53 * total)
__device__ __forceinline__ U64 part_of(U64 total, U64 bits) {
    U64 low = (bits & EVERYBODY) * (total & EVERYBODY), high = (bits >> 32) * (total >> 32);
    U64 one = (bits & EVERYBODY) * (total >> 32), other = (bits >> 32) * (total & EVERYBODY);
    U64 carry = (low >> 32) + (one & EVERYBODY) + (other & EVERYBODY);
    high += (one >> 32) + (other >> 32) + (carry >> 32);
    return high << 11 | (carry << 32 | (low & EVERYBODY)) >> 53;
}

// The share of a candidate under the temperature, 0 for one that is not left.
__device__ __forceinline__ U64 drawn_share(const Row& row, const State& s, int id) {
    double x = row.logit(id);
    return left_over(s, row.set, x, id) ? share_of(x / row.set.temperature - s.peak / row.set.temperature) : 0;
}

__device__ __forceinline__ void take_token(const Row& row, Settings* settings, int id) {
    row.history[id] += 2;
    settings->index = row.set.index + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS) draw(PARAMETERS) {
    __shared__ int block;
    __shared__ U64 target;
    OPEN_ROW
    Settings* set = settings + blockIdx.y;
    State s = *row.state;
    U64 mine = 0, total = 0;
    if (row.set.kind == SAMPLED)
        for (int i = 0; i < PER_THREAD; i++) {
            int id = blockIdx.x * SHARE + i * THREADS + threadIdx.x;
            if (id < vocabulary) mine += drawn_share(row, s, id);
        }
    sum_before(mine, total);
    if (threadIdx.x == 0) row.found[blockIdx.x] = make_uint4((unsigned)total, (unsigned)(total >> 32), 0, 0);
    // Nobody reads the history or the index any more once all blocks are here.
    if (!last_to_arrive(row.counters)) return;
    if (row.set.kind == GREEDY) {
        if (threadIdx.x == 0) take_token(row, set, ids[blockIdx.y]);
        return;
    }
    // Neighbouring blocks a thread, then neighbouring ids of one block.
    int each = ((int)gridDim.x + THREADS - 1) / THREADS, first = threadIdx.x * each;
    auto block_sum = [&](int i) {
        if (i >= (int)gridDim.x) return 0ull;
        uint4 v = __ldcg(&row.found[i]);
        return (U64)v.y << 32 | v.x;
    };
    mine = 0;
    for (int i = 0; i < each; i++) mine += block_sum(first + i);
    U64 before = sum_before(mine, total);
    U64 goal = part_of(total, random_bits(row.set)) + 1;
    for (int i = 0; i < each; i++) {
        U64 sum = block_sum(first + i);
        if (before < goal && goal <= before + sum) block = first + i, target = goal - before;
        before += sum;
    }
    __syncthreads();
    first = block * SHARE + threadIdx.x * PER_THREAD;
    U64 shares[PER_THREAD];
    mine = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        shares[i] = first + i < vocabulary ? drawn_share(row, s, first + i) : 0;
        mine += shares[i];
    }
    before = sum_before(mine, total);
    goal = target;
    int chosen = -1;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (before < goal && goal <= before + shares[i]) chosen = first + i;
        before += shares[i];
    }
    __syncthreads();
    if (chosen < 0) return;
    ids[blockIdx.y] = chosen;
    take_token(row, set, chosen);
}
