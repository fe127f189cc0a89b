// SwiGLU of gate and up that were multiplied apart, because their formats differ: a thread a value.

@compute @workgroup_size(64)
fn combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let i = (group.y * FOLD + group.x) * 64u + t;
    if i < live_rows() * OUT_WIDTH { out[i] = gated(gates[i], ups[i]); }
}
