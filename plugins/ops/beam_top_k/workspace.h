// The workspace between BeamTopK's two kernels. A row is cut into slices of its vocabulary. The first kernel finds the
// best tokens of each slice, the second kernel the best candidates of each sample.
#pragma once

namespace tightbeam {

constexpr int TOP_K_THREADS = 256, TOP_K_THREAD_TOKENS = 32;
constexpr int TOP_K_SLICE = TOP_K_THREADS * TOP_K_THREAD_TOKENS;

// The key that orders a sample's candidates, the largest first. It is never zero.
struct BeamTopKKey {
  unsigned long long total_and_beam, score_and_token;
};

struct BeamTopKWorkspace {
  int slices;           // of a row
  int tokens;           // of a slice
  int lists;            // of a slice: tokens with unchanged scores and, with a repetition penalty, penalised tokens
  int listed;           // tokens of a list
  int capacity;         // keys of a slice that a block can rank, at least `listed`
  BeamTopKKey* chosen;  // [B, M slices lists listed]
  unsigned long long* candidates;  // [R, slices, lists, listed]: keys of logit and token, best first, then zeros
  float* slice_max;                // [R, slices]: the largest logit; NaN if the row's inputs are invalid
  float* sums;                     // [R, slices]: sums of exp(logit - slice_max)
};

}  // namespace tightbeam
