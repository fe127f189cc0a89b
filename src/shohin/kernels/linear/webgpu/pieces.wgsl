// The rows of up to three pieces of weights, dealt out four at a time: a quartet never spans two pieces.
//
// Constants: PIECES, and of each piece N_i rows and COLUMN_i, the place of its first row in a row of out.

const QUARTETS_0 = (N_0 + 3u) / 4u;
const QUARTETS_1 = select(0u, (N_1 + 3u) / 4u, PIECES > 1u);
const QUARTETS_2 = select(0u, (N_2 + 3u) / 4u, PIECES > 2u);

struct Quartet { piece: u32, first: u32 }

// The quartet of that number in all pieces; its rows are `first` to `first + 3`, of which the last may not exist.
fn quartet(i: u32) -> Quartet {
    if i < QUARTETS_0 { return Quartet(0u, 4u * i); }
    if i < QUARTETS_0 + QUARTETS_1 { return Quartet(1u, 4u * (i - QUARTETS_0)); }
    return Quartet(2u, 4u * (i - QUARTETS_0 - QUARTETS_1));
}

fn rows_of(piece: u32) -> u32 { return select(select(N_0, N_1, piece == 1u), N_2, piece == 2u); }
fn column_of(piece: u32) -> u32 { return select(select(COLUMN_0, COLUMN_1, piece == 1u), COLUMN_2, piece == 2u); }
