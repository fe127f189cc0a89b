// Rows of x in float32, normed and in the order of the quads that they meet, kept for the multiplication: a workgroup a
// row.

@compute @workgroup_size(256)
fn prepare(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.x;
    if row >= live() { return; }
    let m = source_row(row);
    let factor = factor_of(t, m);
    for (var i = t; i < BLOCKS * QUADS; i += REDUCED) {
        row_inputs[row * BLOCKS * QUADS + i] = inputs(m, i / QUADS, i % QUADS, factor);
    }
}
