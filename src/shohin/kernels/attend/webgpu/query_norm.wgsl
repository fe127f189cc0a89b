// The query norm's weight.
fn query_weight(d: u32) -> f32 { return query_norm[d]; }
