fn sum_of_unit(one: u32) -> u32 { return one; }
