// Sums and maxima over a workgroup of REDUCED threads, a power of two: shuffles within a subgroup, memory across them.
// An exchange of neighbours at doubling distances gives the same sum in every lane, whatever the size of a subgroup.

var<workgroup> reduced_floats: array<f32, REDUCED>;

fn sum_of_all(t: u32, mine: f32) -> f32 {
    var sum = mine;
    let lanes = min(subgroupAdd(1u), REDUCED);
    var stride = 1u;
    for (; stride < lanes; stride *= 2u) { sum += subgroupShuffleXor(sum, stride); }
    for (; stride < REDUCED; stride *= 2u) {
        reduced_floats[t] = sum;
        workgroupBarrier();
        sum = reduced_floats[t & ~stride] + reduced_floats[t | stride];
        workgroupBarrier();
    }
    return sum;
}

fn max_of_all(t: u32, mine: f32) -> f32 {
    var top = mine;
    let lanes = min(subgroupAdd(1u), REDUCED);
    var stride = 1u;
    for (; stride < lanes; stride *= 2u) { top = max(top, subgroupShuffleXor(top, stride)); }
    for (; stride < REDUCED; stride *= 2u) {
        reduced_floats[t] = top;
        workgroupBarrier();
        top = max(reduced_floats[t & ~stride], reduced_floats[t | stride]);
        workgroupBarrier();
    }
    return top;
}
