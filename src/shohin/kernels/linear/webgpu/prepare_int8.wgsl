// Rows of x as int8 codes, kept for the multiplication: a workgroup a row.

var<private> row: u32;

fn put_codes(i: u32, word: u32) { row_codes[row * (WIDTH / 4u) + i] = word; }

@compute @workgroup_size(256)
fn prepare(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    row = group.x;
    if row >= live() { return; }
    quantise_row(t, source_row(row));
    for (var b = t; b < BLOCKS; b += REDUCED) {
        row_scales[row * BLOCKS + b] = vec2(bitcast<u32>(scales[b]), bitcast<u32>(atomicLoad(&sums[b])));
    }
}
