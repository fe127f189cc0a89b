// Many rows of x, prepared, times up to three pieces of weights: a workgroup takes a tile of TILE_ROWS rows and TILE_N
// rows of weights, a thread EACH_M by EACH_N of its outputs. Blocks are added one by one in order of K, as `decode` adds
// them, so a row has the same bits in both.
//
// Constants: THREADS = THREADS_M * (THREADS / THREADS_M); EPILOGUE as in decode.wgsl; OUT_WIDTH of a row of out; TILES_i
// tiles of each piece; ROWS_OF_X that scratch holds.

const TILE_ROWS = THREADS_M * EACH_M;
const THREADS_N = THREADS / THREADS_M;
const TILE_N = THREADS_N * EACH_N;
const OUTPUTS = EACH_M * EACH_N;

var<private> sums_of: array<f32, OUTPUTS>;

fn add_terms(i: u32, pair: vec2<f32>) { sums_of[i] = fma(pair.x, pair.y, sums_of[i]); }

// The outputs of this thread in the tile of a piece that begins at row `from`.
fn multiply_tile(t: u32, piece: u32, begin: u32, first: u32) {
    let count = min(TILE_ROWS, live() - first);
    let m = t / THREADS_N;
    var n: array<u32, EACH_N>;
    for (var j = 0u; j < EACH_N; j++) { n[j] = min(begin + t % THREADS_N + j * THREADS_N, rows_of(piece) - 1u); }
    for (var i = 0u; i < OUTPUTS; i++) { sums_of[i] = 0.0f; }
    for (var b = 0u; b < BLOCKS; b++) {
        load_rows(t, first, count, b);
        workgroupBarrier();
        add_block(piece, n, b, first, m);
        workgroupBarrier();
    }
}

@compute @workgroup_size(THREADS)
fn multiply(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let first = group.y * TILE_ROWS;
    if first >= live() { return; }
    var piece = 0u;
    var tile = group.x;
    if EPILOGUE != 2u {
        if PIECES > 1u && tile >= TILES_0 {
            piece = 1u;
            tile -= TILES_0;
        }
        if PIECES > 2u && piece == 1u && tile >= TILES_1 {
            piece = 2u;
            tile -= TILES_1;
        }
    }
    let begin = tile * TILE_N;
    var gates: array<f32, OUTPUTS>;
    if EPILOGUE == 2u {
        multiply_tile(t, 0u, begin, first);
        gates = sums_of;
        piece = 1u;
    }
    multiply_tile(t, piece, begin, first);
    for (var i = 0u; i < EACH_M; i++) {
        let m = first + t / THREADS_N + i * THREADS_M;
        for (var j = 0u; j < EACH_N; j++) {
            let n = begin + t % THREADS_N + j * THREADS_N;
            if m < live() && n < rows_of(piece) {
                let at = m * OUT_WIDTH + column_of(piece) + n;
                let sum = sums_of[i * EACH_N + j];
                if EPILOGUE == 0u { out[at] = sum; }
                if EPILOGUE == 1u { out[at] += sum; }
                if EPILOGUE == 2u { out[at] = gated(gates[i * EACH_N + j], sum); }
            }
        }
    }
}
