// The row of the cache, counted in heads of one token, where a sequence's position lies for a KV head.
fn cache_row(sequence: u32, position: u32, head: u32) -> u32 {
    return (step_page(sequence, position / PAGE) * KV_HEADS + head) * PAGE + position % PAGE;
}
