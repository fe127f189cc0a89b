// SwiGLU (M.14).
fn gated(gate: f32, up: f32) -> f32 { return gate / (1.0f + exp(-gate)) * up; }
