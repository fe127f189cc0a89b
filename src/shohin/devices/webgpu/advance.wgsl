// Makes the next step of a run that is ahead of its host: the picked id at the next position, or no rows at all when the
// run is over. picks: id, status, whether the step ran.

@compute @workgroup_size(1)
fn advance() {
    let ran = live_rows() > 0u;
    picks[0] = ids[0];
    picks[1] = status[0];
    picks[2] = i32(ran);
    if !ran { return; }
    var over = status[0] != 0;
    for (var i = 0; i < stops[0]; i++) { over = over || stops[1 + i] == ids[0]; }
    if over {
        step_table[0] = 0u;
        step_table[1] = 0u;
    } else {
        step_table[STEP_HEADER] = u32(ids[0]);
        step_table[STEP_HEADER + ROWS] += 1u;
    }
}
