// Workspace between BeamTopK's two kernels. The vocabulary is cut into slices of a row; the first kernel finds the best
// tokens of each slice, the second one the best of each sample.
#pragma once

namespace tightbeam {

constexpr int TOP_K_THREADS = 256, TOP_K_THREAD_TOKENS = 32;
constexpr int TOP_K_SLICE = TOP_K_THREADS * TOP_K_THREAD_TOKENS;

// Orders the candidates of a sample, the greatest first; never zero.
struct BeamTopKKey {
  unsigned long long total_and_beam, score_and_token;
};

struct BeamTopKWorkspace {
  int slices;           // of a row
  int tokens;           // of a slice
  int lists;            // of a slice: tokens with their own score; with a repetition penalty also those it falls on
  int listed;           // of a list
  int kept;             // tokens of a slice that a block has room to rank, `listed` at least
  BeamTopKKey* chosen;  // [B, M slices lists listed]
  unsigned long long* candidates;  // [R, slices, lists, listed]: logit and token, best first, then zeros
  float* slice_max;                // [R, slices]: logit; NaN where the row's inputs are not valid
  float* sums;                     // [R, slices]: of exp(logit - slice_max)
};

}  // namespace tightbeam
