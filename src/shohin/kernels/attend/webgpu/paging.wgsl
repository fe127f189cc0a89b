// The row of the cache, counted in heads of one token, where position `at` of sequence `owner` lies for a KV head.
fn cache_row(owner: u32, at: u32, head: u32) -> u32 {
    return (page(owner, at / PAGE) * KV_HEADS + head) * PAGE + at % PAGE;
}
