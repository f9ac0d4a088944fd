// What a kernel of BeamTopK is given. Letters: docs/design.md, Letters. R = B x M rows, C candidates, P banned tokens.
#pragma once

namespace tightbeam {

template <class Float>
struct BeamTopKArguments {
  int B, M, C, T, P;
  int vocabulary;
  int ngram_size;  // 0 blocks nothing
  bool normalize;
  float repetition_penalty;

  // The same on the device, where the host does not know them; then null or all three. What is not valid there marks
  // every sample.
  const bool* normalize_at;
  const float* repetition_penalty_at;
  const long long* ngram_size_at;

  const Float* logits;        // [R, vocabulary]
  const float* beam_scores;   // [B, M]
  const long long* history;   // [R, T], left-aligned
  const int* lengths;         // [B]: tokens of the sample so far
  const long long* banned;    // [R, P], -1 where there is none

  float* scores;      // [B, C], descending
  long long* beams;   // [B, C]
  long long* tokens;  // [B, C]
};

}  // namespace tightbeam
