#include <algorithm>
#include <cstring>

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

}  // namespace

template <class Float>
void ngram_block(const NGramBlockArguments<Float>& a, const Parallel& parallel) {
  check_lengths("NGramBlock", a.lengths, a.R, a.T, "the tokens of history");
  parallel.for_each(a.R, [&](size_t row) {
    const int length = a.lengths[row];
    const long long* history = a.history + row * a.T;
    check_tokens("NGramBlock", "history", static_cast<long>(row), history, length, 0, a.vocabulary);
    Float* blocked = a.blocked + row * a.vocabulary;
    const Float* scores = a.scores + row * a.vocabulary;
    if (blocked != scores) std::memcpy(blocked, scores, sizeof(Float) * a.vocabulary);
    each_repeat(history, length, a.ngram_size, [&](long long token) { blocked[token] = minus_infinity(Float{}); });
  });
}

template void ngram_block(const NGramBlockArguments<float>&, const Parallel&);
template void ngram_block(const NGramBlockArguments<Float16>&, const Parallel&);
template void ngram_block(const NGramBlockArguments<BFloat16>&, const Parallel&);

}  // namespace tightbeam
