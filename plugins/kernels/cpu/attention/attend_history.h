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

// What attention over a history has whatever its caches hold.
struct HistoryBase {
  const char* op;  // for errors
  int B, M, H, G, T, T_max;
  int rotary, rotary_positions, bias_distances, bias_row_stride;
  float scale, softcap;
  int window;
  const float* query;  // row r and head h are at query + r * query_stride + h * width of the keys
  size_t query_stride;
  const int* ancestry;
  const int* lengths;
  const float *cosines, *sines;
  const int* first_positions;
  const float* distance_bias;
  const float* prefix_output;
  const float* prefix_lse;
  float* output;  // [R, H, width of the values]

  size_t row(size_t b, int m) const { return b * M + m; }
  const int* slots(size_t b, int m) const { return ancestry + row(b, m) * T; }

  // The first position that counts in sample b.
  int oldest(size_t b) const { return window == 0 || lengths[b] < window ? 0 : lengths[b] - window; }

  // The first position, from t on, where the histories of a sample's beams differ. The beams read the positions before
  // it together. Soon these are all but the last few, since the surviving beams have a common ancestor.
  int end_of_shared(size_t b, int t) const {
    for (; t < lengths[b] - 1; ++t)
      for (int m = 1; m < M; ++m)
        if (slots(b, m)[t] != slots(b, 0)[t]) return t;
    return t;
  }
};

struct History : HistoryBase {
  HistoryRows keys;
  HistoryRows values;       // if values.cache is null, the values are whole rows of the keys, all G heads side by side
  const float* row_scales;  // [R, G]: factors of the new keys' scores; or null
  float* scale_cache;       // [R, G, T_max]: factors of each position; this step writes the new ones; or null
};

// The part of a history that the operators' arguments have under the same names.
template <class Any, class Arguments>
Any history_of(const char* op, const Arguments& a) {
  Any history{};
  history.op = op;
  history.B = a.B;
  history.M = a.M;
  history.H = a.H;
  history.G = a.G;
  history.T = a.T;
  history.T_max = a.T_max;
  history.bias_distances = a.bias_distances;
  history.bias_row_stride = a.bias_row_stride;
  history.scale = a.scale;
  history.softcap = a.softcap;
  history.window = a.window;
  history.ancestry = a.ancestry;
  history.lengths = a.lengths;
  history.distance_bias = a.distance_bias;
  history.prefix_output = a.prefix_output;
  history.prefix_lse = a.prefix_lse;
  history.output = a.output;
  return history;
}

// A history whose keys are rotated when they are read.
template <class Arguments>
History rotated_history_of(const char* op, const Arguments& a) {
  History history = history_of<History>(op, a);
  history.rotary = a.rotary;
  history.rotary_positions = a.rotary_positions;
  history.cosines = a.cosines;
  history.sines = a.sines;
  history.first_positions = a.first_positions;
  return history;
}

// Raises OperatorError if a value points outside the caches or the tables. The sizes have been checked before
// (attention_arguments.h).
void check_history(const HistoryBase& history);

// Checks the history before it writes anything.
void attend_history(const History& history, const Parallel& parallel);

}  // namespace tightbeam
