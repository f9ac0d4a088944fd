// Attention of each beam over its own history, read through the ancestry from caches that never move. BeamAttention and
// BeamLatentAttention differ in where values come from.
#pragma once

#include <cstddef>

#include "kernels/cpu/parallel.h"

namespace tightbeam {

// One cache [R, G, T_max, width] and the row that is written to it in this step.
struct HistoryRows {
  float* cache;
  const float* row;  // of beam r and key head g at row + r * row_stride + g * width
  size_t row_stride;
  int width;
};

struct History {
  const char* op;  // for errors
  int B, M, H, G, T, T_max;
  int rotary, rotary_positions, bias_distances, bias_row_stride;
  float scale, softcap;
  int window;
  const float* query;  // of row r and head h at query + r * query_stride + h * width of the keys
  size_t query_stride;
  HistoryRows keys;
  HistoryRows values;  // values.cache null: the values are whole rows of the keys, all G heads side by side
  const int* ancestry;
  const int* lengths;
  const float *cosines, *sines;
  const int* first_positions;
  const float* distance_bias;
  const float* prefix_output;
  const float* prefix_lse;
  const float* row_scales;  // [R, G] factors on the scores of the new keys, or null
  float* scale_cache;       // [R, G, T_max] factors of each position, with the new ones written; or null
  float* output;            // [R, H, width of the values]
};

// The arguments that both operators have under the same names.
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

// Raises OperatorError, before anything is written, for values that point outside the caches or tables; sizes have been
// checked (attention_arguments.h).
void attend_history(const History& history, const Parallel& parallel);

}  // namespace tightbeam
