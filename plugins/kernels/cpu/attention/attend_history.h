// Attention of each beam over its own history, which is read through the ancestry from caches that never move.
// BeamAttention has a cache of values; BeamLatentAttention takes its values from the rows of the keys.
#pragma once

#include <cstddef>

#include "kernels/cpu/parallel.h"

namespace tightbeam {

// A cache [R, G, T_max, width], and the row that this step writes.
struct HistoryRows {
  float* cache;
  const float* row;  // row r and key head g are at row + r * row_stride + g * width
  size_t row_stride;
  int width;
};

struct History {
  const char* op;  // for errors
  int B, M, H, G, T, T_max;
  int rotary, rotary_positions, bias_distances, bias_row_stride;
  float scale, softcap;
  int window;
  const float* query;  // row r and head h are at query + r * query_stride + h * width of the keys
  size_t query_stride;
  HistoryRows keys;
  HistoryRows values;  // if values.cache is null, the values are whole rows of the keys, all G heads side by side
  const int* ancestry;
  const int* lengths;
  const float *cosines, *sines;
  const int* first_positions;
  const float* distance_bias;
  const float* prefix_output;
  const float* prefix_lse;
  const float* row_scales;  // [R, G]: factors of the new keys' scores; or null
  float* scale_cache;       // [R, G, T_max]: factors of each position; this step writes the new ones; or null
  float* output;            // [R, H, width of the values]
};

// The part of a History that both operators' arguments have under the same names.
template <class Arguments>
History history_of(const char* op, const Arguments& a) {
  History history{};
  history.op = op;
  history.B = a.B;
  history.M = a.M;
  history.H = a.H;
  history.G = a.G;
  history.T = a.T;
  history.T_max = a.T_max;
  history.rotary = a.rotary;
  history.rotary_positions = a.rotary_positions;
  history.bias_distances = a.bias_distances;
  history.bias_row_stride = a.bias_row_stride;
  history.scale = a.scale;
  history.softcap = a.softcap;
  history.window = a.window;
  history.ancestry = a.ancestry;
  history.lengths = a.lengths;
  history.cosines = a.cosines;
  history.sines = a.sines;
  history.first_positions = a.first_positions;
  history.distance_bias = a.distance_bias;
  history.prefix_output = a.prefix_output;
  history.prefix_lse = a.prefix_lse;
  history.output = a.output;
  return history;
}

// Raises OperatorError, before it writes anything, if a value points outside the caches or the tables. The sizes have
// been checked before (attention_arguments.h).
void attend_history(const History& history, const Parallel& parallel);

}  // namespace tightbeam
