// The least logit that min_p leaves; -3e38 and below are off.
fn least_of(row: u32, top: f32) -> f32 {
    let least = real(row, LEAST);
    return select(top + least, -3.4e38, least < -3.0e38);
}
