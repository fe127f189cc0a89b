// Whole numbers below 2^22 in size as floats without a conversion: integer sums start at the bits of WHOLE, whose
// neighbours lie 1 apart, and are read as floats.
#pragma once

constexpr float WHOLE = 12582912.0f;  // 1.5 * 2^23
constexpr int WHOLE_BITS = 0x4b400000;
