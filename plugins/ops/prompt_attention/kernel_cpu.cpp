// Keys and values of a few key heads are packed at a time. Then an item is a run of queries of one head, which goes
// over the packed keys that it sees.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/attention/encoder_attention.h"
#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspaces.h"
#include "ops/prompt_attention/arguments.h"

namespace tightbeam {
namespace {

constexpr int QUERIES = 96;               // of an item, a multiple of a tile of the inner loops
constexpr int KEYS = 1024;                // that an item packs, a multiple of a tile
constexpr long PACKED_NUMBERS = 4 << 20;  // of the key heads that are packed together, unless one head has more

void check(const PromptAttentionArguments<float>& a) {
  for (int b = 0; b < a.B && a.starts != nullptr; ++b)
    if (a.starts[b] < 0 || a.starts[b] > a.positions - a.N)
      fail("PromptAttention", "starts[" + std::to_string(b) + "] is " + std::to_string(a.starts[b]) +
                                  ", expected 0 to " + std::to_string(a.positions - a.N) + ", since there are " +
                                  std::to_string(a.N) + " queries and " + std::to_string(a.positions) + " positions");
  if (a.positions < a.N)
    fail("PromptAttention", "has " + std::to_string(a.N) + " queries, expected at most as many as its " +
                                std::to_string(a.positions) + " positions");
  for (int b = 0; b < a.B && a.key_bias != nullptr; ++b)
    if (a.start(b) + a.N > a.biases)
      fail("PromptAttention", "key_bias has " + std::to_string(a.biases) + " positions, expected " +
                                  std::to_string(a.start(b) + a.N) + " or more");
}

// Biases of all heads, each with room behind it.
std::vector<float> copied_biases(const PromptAttentionArguments<float>& a) {
  const size_t width = a.biases + BIAS_OVERRUN;
  std::vector<float> copy(a.key_bias == nullptr ? 0 : a.H * width);
  for (int h = 0; h < a.H && a.key_bias != nullptr; ++h)
    std::copy_n(a.key_bias + static_cast<size_t>(h) * a.biases, a.biases, copy.data() + h * width);
  return copy;
}

}  // namespace

void prompt_attention(const PromptAttentionArguments<float>& a, const Parallel& parallel) {
  check(a);
  const EncoderAttentionKernels& kernels = encoder_attention_kernels();
  const size_t N = a.N, H = a.H, G = a.G, K = a.K, V = a.V, positions = a.positions, shared = H / G;
  int last = 0;
  for (int b = 0; b < a.B; ++b) last = std::max(last, a.start(b) + a.N);
  std::vector<int> all(last);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<float> biases = copied_biases(a);
  const size_t keys = whole_lines(kernels.keys_size(last, a.K)), values = whole_lines(kernels.values_size(last, a.V));
  const size_t heads = a.B * G, together = std::clamp<size_t>(PACKED_NUMBERS / (keys + values), 1, heads);
  const Numbers packed = aligned<float>(together * (keys + values));
  Workspaces workspaces(whole_lines(kernels.workspace_size(a.K, a.V)));

  const auto head_of = [&](size_t b, size_t g, size_t h) {
    const size_t own = b * G + g;
    AttentionHead head{a.query + (b * H + h) * N * K,
                       a.key + own * positions * K,
                       a.value + own * positions * V,
                       static_cast<long>(K),
                       static_cast<long>(V),
                       static_cast<long>(H * V),
                       a.K,
                       a.V,
                       all.data(),
                       a.start(b) + a.N,
                       a.scale,
                       biases.empty() ? nullptr : biases.data() + h * (a.biases + BIAS_OVERRUN),
                       {}};
    head.sight = {true, a.window, a.start(b), a.softcap, true};
    return head;
  };
  const size_t key_runs = (last + KEYS - 1) / KEYS, query_runs = (N + QUERIES - 1) / QUERIES;
  const long value_width = kernels.values_size(1, a.V);
  for (size_t first = 0; first < heads; first += together) {
    const size_t count = std::min(together, heads - first);
    parallel.for_each(count * key_runs, [&](size_t item) {
      const size_t own = first + item / key_runs;
      AttentionHead head = head_of(own / G, own % G, own % G * shared);
      const int from = static_cast<int>(item % key_runs) * KEYS, to = std::min(head.count, from + KEYS);
      const int oldest = a.window == 0 ? 0 : head.sight.first - a.window + 1;  // that a query sees
      if (from >= to || to <= oldest) return;
      float* const place = packed.get() + (own - first) * (keys + values);
      head.positions += from;
      head.count = to - from;
      kernels.pack(head, place + from * K, place + keys + from * value_width);
    });
    parallel.for_each(count * shared * query_runs, [&](size_t item) {
      const size_t own = first + item / query_runs / shared, b = own / G, g = own % G;
      const size_t h = g * shared + item / query_runs % shared;
      const AttentionHead head = head_of(b, g, h);
      const int begin = head.sight.first + static_cast<int>(item % query_runs) * QUERIES;
      const float* const place = packed.get() + (own - first) * (keys + values);
      Numbers workspace = workspaces.take();
      kernels.attend(head, place, place + keys, begin, std::min(head.count, begin + QUERIES), workspace.get(),
                     a.output + b * N * H * V + h * V);
      workspaces.release(std::move(workspace));
    });
  }
}

}  // namespace tightbeam
