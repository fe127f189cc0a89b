// Many rows of x, prepared, times up to three pieces of weights: a workgroup takes a tile of TILE_ROWS rows of x and
// TILE_N rows of weights, a thread EACH_M rows by four of its outputs. Blocks are added one by one in order of K, as
// `decode` adds them, so a row has the same bits in both.
//
// What a thread keeps has names, four columns a vector, and no index: an array that a driver's compiler does not unroll
// goes to memory, which made this kernel a hundred times slower on one.
//
// Constants: THREADS = THREADS_M * THREADS_N; EACH_M up to 4; EPILOGUE as in decode.wgsl; OUT_WIDTH of a row of out;
// TILES_i tiles of each piece; ROWS_OF_X that scratch holds.

const TILE_ROWS = THREADS_M * EACH_M;
const THREADS_N = THREADS / THREADS_M;
const TILE_N = THREADS_N * 4u;

// The outputs of this thread, row by row of x.
var<private> sum_0: vec4<f32>;
var<private> sum_1: vec4<f32>;
var<private> sum_2: vec4<f32>;
var<private> sum_3: vec4<f32>;

// The outputs of this thread in the tile of a piece that begins at row `from`.
fn multiply_tile(t: u32, piece: u32, begin: u32, first: u32) {
    let count = min(TILE_ROWS, live() - first);
    let step = vec4(0u, 1u, 2u, 3u) * THREADS_N;
    let n = min(vec4(begin + t % THREADS_N) + step, vec4(rows_of(piece) - 1u));
    sum_0 = vec4(0.0f);
    sum_1 = vec4(0.0f);
    sum_2 = vec4(0.0f);
    sum_3 = vec4(0.0f);
    for (var b = 0u; b < BLOCKS; b++) {
        load_rows(t, first, count, b);
        workgroupBarrier();
        add_block(piece, n, b, first, t / THREADS_N);
        workgroupBarrier();
    }
}

fn store_one(m: u32, piece: u32, n: u32, gate: f32, sum: f32) {
    if n < rows_of(piece) {
        let at = m * OUT_WIDTH + column_of(piece) + n;
        if EPILOGUE == 0u { out[at] = sum; }
        if EPILOGUE == 1u { out[at] += sum; }
        if EPILOGUE == 2u { out[at] = gated(gate, sum); }
    }
}

fn store_row(m: u32, piece: u32, n: u32, gates: vec4<f32>, sums: vec4<f32>) {
    if m < live() {
        store_one(m, piece, n, gates.x, sums.x);
        store_one(m, piece, n + THREADS_N, gates.y, sums.y);
        store_one(m, piece, n + 2u * THREADS_N, gates.z, sums.z);
        store_one(m, piece, n + 3u * THREADS_N, gates.w, sums.w);
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
    var gates_0 = vec4(0.0f);
    var gates_1 = vec4(0.0f);
    var gates_2 = vec4(0.0f);
    var gates_3 = vec4(0.0f);
    if EPILOGUE == 2u {
        multiply_tile(t, 0u, begin, first);
        gates_0 = sum_0;
        gates_1 = sum_1;
        gates_2 = sum_2;
        gates_3 = sum_3;
        piece = 1u;
    }
    multiply_tile(t, piece, begin, first);
    let m = first + t / THREADS_N;
    let n = begin + t % THREADS_N;
    store_row(m, piece, n, gates_0, sum_0);
    if EACH_M > 1u { store_row(m + THREADS_M, piece, n, gates_1, sum_1); }
    if EACH_M > 2u { store_row(m + 2u * THREADS_M, piece, n, gates_2, sum_2); }
    if EACH_M > 3u { store_row(m + 3u * THREADS_M, piece, n, gates_3, sum_3); }
}
