// Sums and maxima over a workgroup of REDUCED threads, a power of two. The order of the additions is that of
// reduce_subgroup.wgsl: neighbours first, then pairs of neighbours, and so on, so that tiers agree in every bit.

var<workgroup> reduced_floats: array<f32, REDUCED>;

// Every thread gets the sum; `t` is its index in the workgroup.
fn sum_of_all(t: u32, mine: f32) -> f32 {
    var sum = mine;
    for (var stride = 1u; stride < REDUCED; stride *= 2u) {
        reduced_floats[t] = sum;
        workgroupBarrier();
        // Both partners add the lower thread's value first; addition commutes, so this is for the reader's peace.
        sum = reduced_floats[t & ~stride] + reduced_floats[t | stride];
        workgroupBarrier();
    }
    return sum;
}

fn max_of_all(t: u32, mine: f32) -> f32 {
    var top = mine;
    for (var stride = 1u; stride < REDUCED; stride *= 2u) {
        reduced_floats[t] = top;
        workgroupBarrier();
        top = max(reduced_floats[t & ~stride], reduced_floats[t | stride]);
        workgroupBarrier();
    }
    return top;
}
