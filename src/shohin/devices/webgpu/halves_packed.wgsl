// float16 pairs in words, where the device has no float16 of its own.
fn halves(word: u32) -> vec2<f32> { return unpack2x16float(word); }
