// The next step's table from this step's picks, so that steps can be enqueued before the host has seen any of them.
//
// ring: in host memory, RING entries of {number of the step + 1, (id, status) of each row}; the number is written last.
// A row that ends (its id is in stops = {count, ids...}, or its status is not 0) ends the step's run: with no live rows
// the steps still in flight do nothing, and their entries say id -1, status -1.

#include "ptx.cuh"
#include "step.cuh"

extern "C" __global__ void advance(int* step, const int* ids, const int* status, const int* stops, volatile int* ring,
                                   int* count) {
    wait_for_previous();
    let_next_start();
    if (threadIdx.x != 0) return;
    int number = count[0], rows = step_rows(step);
    volatile int* entry = ring + (number % RING) * (1 + 2 * ROWS);
    bool ends = rows == 0;
    for (int m = 0; m < ROWS; m++) {
        bool live = m < rows;
        int id = live ? ids[m] : -1, state = live ? status[m] : -1;
        entry[1 + 2 * m] = id;
        entry[2 + 2 * m] = state;
        if (!live) continue;
        for (int i = 0; i < stops[0]; i++) ends |= stops[1 + i] == id;
        ends |= state != 0;
        step[4 + m] = id;
        step[4 + ROWS + m] += 1;
    }
    if (ends) step[0] = step[1] = 0;
    count[0] = number + 1;
    __threadfence_system();
    entry[0] = number + 1;
}
