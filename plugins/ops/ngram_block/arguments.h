// What a kernel of NGramBlock is given.
#pragma once

namespace tightbeam {

template <class Float>
struct NGramBlockArguments {
  int R, T;
  int vocabulary;
  int ngram_size;  // 0 blocks nothing; may be larger than T
  const long long* ngram_size_at;  // the same on the device, where the host does not know it; or null

  const long long* history;  // [R, T], left-aligned
  const int* lengths;        // [R]: tokens of the row that count

  const Float* scores;  // [R, vocabulary]; may be the same memory as blocked
  Float* blocked;       // [R, vocabulary]
};

}  // namespace tightbeam
