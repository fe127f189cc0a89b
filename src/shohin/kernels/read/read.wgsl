// out[c] = the sum of chunk c modulo 2^32: a workgroup a chunk, every word loaded once.
//
// Constants: CHUNKS, UNITS of a chunk; sum_of_unit(i) adds up one unit: four words, or one where chunks are ragged.

var<workgroup> parts: array<u32, 256>;

@compute @workgroup_size(256)
fn sum_chunks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let chunk = group.y * FOLD + group.x;
    if chunk >= CHUNKS { return; }
    var sum = 0u;
    for (var i = t; i < UNITS; i += 256u) { sum += sum_of_unit(words[chunk * UNITS + i]); }
    parts[t] = sum;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
        if t < half { parts[t] += parts[t + half]; }
        workgroupBarrier();
    }
    if t == 0u { out[chunk] = parts[0]; }
}
