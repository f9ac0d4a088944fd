#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "kernels/floats.h"
#include "ops/ngram_block/arguments.h"
#include "ops/ngram_block/repeats.h"

namespace tightbeam {
namespace {

constexpr float minus_infinity(float) { return -__builtin_inff(); }
constexpr Float16 minus_infinity(Float16) { return {0xFC00}; }
constexpr BFloat16 minus_infinity(BFloat16) { return {0xFF80}; }

void check_tokens(const long long* history, int length, int row, int vocabulary) {
  for (int t = 0; t < length; ++t)
    if (history[t] < 0 || history[t] >= vocabulary)
      fail("NGramBlock", "history[" + std::to_string(row) + ", " + std::to_string(t) + "] is " +
                             std::to_string(history[t]) + ", expected a token in 0.." + std::to_string(vocabulary - 1));
}

}  // namespace

template <class Float>
void ngram_block(const NGramBlockArguments<Float>& a, const Parallel& parallel) {
  check_lengths("NGramBlock", a.lengths, a.R, a.T, "the tokens of history");
  parallel.for_each(a.R, [&](size_t r) {
    const int row = static_cast<int>(r);
    const int length = a.lengths[row];
    const long long* history = a.history + r * a.T;
    check_tokens(history, length, row, a.vocabulary);
    Float* blocked = a.blocked + r * a.vocabulary;
    const Float* scores = a.scores + r * a.vocabulary;
    if (blocked != scores) std::memcpy(blocked, scores, sizeof(Float) * a.vocabulary);
    each_repeat(history, length, a.ngram_size, [&](long long token) { blocked[token] = minus_infinity(Float{}); });
  });
}

template void ngram_block(const NGramBlockArguments<float>&, const Parallel&);
template void ngram_block(const NGramBlockArguments<Float16>&, const Parallel&);
template void ngram_block(const NGramBlockArguments<BFloat16>&, const Parallel&);

}  // namespace tightbeam
