// The step table: live rows, live wanted rows, entries of a page row, flags; then [ROWS] tokens, positions and sequences,
// [WANTED] wanted rows, and the page table.

const STEP_HEADER = 4u;

fn live_rows() -> u32 { return step_table[0]; }
fn live_wanted() -> u32 { return step_table[1]; }
fn token(m: u32) -> u32 { return step_table[STEP_HEADER + m]; }
fn position(m: u32) -> u32 { return step_table[STEP_HEADER + ROWS + m]; }
fn sequence(m: u32) -> u32 { return step_table[STEP_HEADER + 2u * ROWS + m]; }
fn wanted_row(i: u32) -> u32 { return step_table[STEP_HEADER + 3u * ROWS + i]; }
fn page(sequence: u32, i: u32) -> u32 {
    return step_table[STEP_HEADER + 3u * ROWS + WANTED + sequence * step_table[2] + i];
}

// x, as the compiler must compute it: drivers take products of three factors in any order, and not in the same order in
// two kernels. No compiler knows that there are fewer than 2^31 rows.
fn pinned(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ (live_rows() >> 31u)); }
