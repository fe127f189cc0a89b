// The step table: what varies from one play of a tape to the next. program.py writes it, advance.cu moves it on.
//
//   {live rows, live wanted rows, pages a sequence, 0}, tokens[ROWS], positions[ROWS], sequences[ROWS], wanted[WANTED],
//   page table [sequences][pages a sequence]
//
// ROWS and WANTED are the tape's capacities.
#pragma once

constexpr int STEP_HEADER = 4;

__device__ __forceinline__ int step_rows(const int* step) { return step[0]; }
__device__ __forceinline__ int step_wanted(const int* step) { return step[1]; }
__device__ __forceinline__ int step_token(const int* step, int m) { return step[STEP_HEADER + m]; }
__device__ __forceinline__ int step_position(const int* step, int m) { return step[STEP_HEADER + ROWS + m]; }
__device__ __forceinline__ int step_sequence(const int* step, int m) { return step[STEP_HEADER + 2 * ROWS + m]; }
// The row that output i belongs to.
__device__ __forceinline__ int step_row(const int* step, int i) { return step[STEP_HEADER + 3 * ROWS + i]; }
// The cache page that holds a sequence's positions P * index and on.
__device__ __forceinline__ int step_page(const int* step, int sequence, int index) {
    return step[STEP_HEADER + 3 * ROWS + WANTED + sequence * step[2] + index];
}
