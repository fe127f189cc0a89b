fn sum_of_unit(four: vec4<u32>) -> u32 { return four.x + four.y + four.z + four.w; }
