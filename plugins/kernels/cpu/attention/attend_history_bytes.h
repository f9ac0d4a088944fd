// Attention of each beam over its own history, whose keys and values are integers of 8 bits.
#pragma once

#include "kernels/cpu/attention/attend_history.h"

namespace tightbeam {

// A cache [R, G, T_max, width] of integers, and the row of floats that this step quantises and writes.
struct ByteHistoryRows {
  signed char* cache;
  float* scales;     // [R, G, T_max]
  const float* row;  // row r and key head g are at row + r * row_stride + g * width
  size_t row_stride;
  int width;
};

struct ByteHistory : HistoryBase {
  ByteHistoryRows keys, values;
};

// Checks the history before it writes anything. The output of a row depends neither on the other rows nor on the
// instruction set.
void attend_history_bytes(const ByteHistory& history, const Parallel& parallel);

}  // namespace tightbeam
