// One row of x times up to three pieces of weights. Every workgroup prepares the row for itself, which costs less than
// another dispatch, and then takes HELD quartets of rows at a time: a thread multiplies one block of four rows, and a
// thread a row adds the blocks in order of K.
//
// Constants: HELD quartets in memory, ROUNDS of them; EPILOGUE: 0 store, 1 add to out, 2 SwiGLU of pieces 0 and 1.

const PAIRS = select(1u, 2u, EPILOGUE == 2u);
const LINE = BLOCKS | 1u;
const HELD_ROWS = 4u * HELD;
const ALL_QUARTETS = select(QUARTETS_0 + QUARTETS_1 + QUARTETS_2, QUARTETS_0, EPILOGUE == 2u);

// Terms of rows by blocks, of piece 0 and then of piece 1 with SwiGLU; then the sums of rows.
var<workgroup> held: array<vec2<f32>, PAIRS * HELD_ROWS * LINE>;
var<workgroup> outcomes: array<f32, PAIRS * HELD_ROWS>;

fn multiply_held(t: u32, m: u32, first: u32) {
    for (var i = t; i < PAIRS * HELD * BLOCKS; i += REDUCED) {
        let b = i % BLOCKS;
        let slot = i / BLOCKS;
        let number = first + slot % HELD;
        if number < ALL_QUARTETS {
            var rows = quartet(number);
            if slot >= HELD { rows.piece = 1u; }
            let n = min(vec4(rows.first) + vec4(0u, 1u, 2u, 3u), vec4(rows_of(rows.piece) - 1u));
            let found = block_terms(rows.piece, n, b, m);
            for (var r = 0u; r < 4u; r++) { held[(4u * slot + r) * LINE + b] = found[r]; }
        }
    }
}

fn add_blocks(t: u32) {
    for (var row = t; row < PAIRS * HELD_ROWS; row += REDUCED) {
        var sum = 0.0f;
        for (var b = 0u; b < BLOCKS; b++) {
            let pair = held[row * LINE + b];
            sum = fma(pair.x, pair.y, sum);
        }
        outcomes[row] = sum;
    }
}

fn store(t: u32, first: u32) {
    for (var row = t; row < HELD_ROWS; row += REDUCED) {
        let number = first + row / 4u;
        let rows = quartet(number);
        let n = rows.first + row % 4u;
        if number < ALL_QUARTETS && n < rows_of(rows.piece) {
            let at = column_of(rows.piece) + n;
            let sum = outcomes[row];
            if EPILOGUE == 0u { out[at] = sum; }
            if EPILOGUE == 1u { out[at] += sum; }
            if EPILOGUE == 2u { out[at] = gated(sum, outcomes[(PAIRS - 1u) * HELD_ROWS + row]); }
        }
    }
}

@compute @workgroup_size(256)
fn decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    if select(live_rows(), live_wanted(), GATHER) == 0u { return; }
    var m = 0u;
    if GATHER { m = wanted_row(0u); }
    prepare(t, m);
    for (var round = 0u; round < ROUNDS; round++) {
        let first = (group.x * ROUNDS + round) * HELD;
        multiply_held(t, m, first);
        workgroupBarrier();
        add_blocks(t);
        workgroupBarrier();
        store(t, first);
    }
}
