// Zeros for the rows of `work` that this step uses. Constant: ROW_WORDS.

@compute @workgroup_size(256)
fn clear(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.y;
    let word = group.x * 256u + t;
    if row < live_wanted() && word < ROW_WORDS { atomicStore(&work[row * ROW_WORDS + word], 0u); }
}
