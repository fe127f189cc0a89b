// Which rows of x a batch has: all live ones, or with GATHER the wanted ones.

fn live() -> u32 {
    if GATHER { return live_wanted(); }
    return live_rows();
}

fn source_row(i: u32) -> u32 {
    if GATHER { return wanted_row(i); }
    return i;
}
