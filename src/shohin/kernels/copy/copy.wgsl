// out[m] = x[m] for every live row: a thread a value.

@compute @workgroup_size(64)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let i = (group.y * FOLD + group.x) * 64u + t;
    if i < live_rows() * WIDTH { out[i] = x[i]; }
}
