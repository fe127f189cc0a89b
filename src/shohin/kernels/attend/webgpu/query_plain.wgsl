// No query norm: NORMED is false, and this is never called.
fn query_weight(d: u32) -> f32 { return 1.0f; }
