// Rows of the table, decoded: a workgroup a row. A table in parts takes one dispatch a part; others' rows are passed over.
//
// Constants: WIDTH, BLOCKS, FIRST row of the part, N_0 its rows.

@compute @workgroup_size(64)
fn embed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let m = group.x;
    if m >= live_rows() { return; }
    let id = token(m);
    if id < FIRST || id - FIRST >= N_0 { return; }
    for (var i = t; i < BLOCKS * QUADS; i += 64u) {
        let b = i / QUADS;
        let head = head_of(0u, id - FIRST, b);
        let four = weights_of(0u, id - FIRST, b, i % QUADS, head) * factor_of_block(head);
        for (var j = 0u; j < 4u; j++) {
            let k = b * BLOCK + quad_start(i % QUADS) + j * SPREAD;
            if k < WIDTH { out[m * WIDTH + k] = four[j]; }
        }
    }
}
