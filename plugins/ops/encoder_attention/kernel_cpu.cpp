// An item is a head of a sample: it packs the keys and values of the positions that count, and goes over the queries.
// If there are few heads, the queries of a head are shared out to several items.
#include <algorithm>
#include <vector>

#include "kernels/cpu/attention/counted_positions.h"
#include "kernels/cpu/attention/encoder_attention.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspaces.h"
#include "ops/encoder_attention/arguments.h"

namespace tightbeam {
namespace {

constexpr int ENOUGH_ITEMS = 16, FEWEST_QUERIES = 128;
}  // namespace

void encoder_attention(const EncoderAttentionArguments<float>& a, const Parallel& parallel) {
  const EncoderAttentionKernels& kernels = encoder_attention_kernels();
  const size_t B = a.B, N = a.N, H = a.H, K = a.K, V = a.V, width = H * K, value_width = H * V;
  const std::vector<std::vector<int>> counted = counted_positions(a.mask, a.B, a.N);
  const long keys = whole_lines(kernels.keys_size(a.N, a.K)), values = whole_lines(kernels.values_size(a.N, a.V));
  const long work = whole_lines(kernels.workspace_size(a.K, a.V)), biases = a.distance_bias == nullptr ? 0 : 2 * N - 1;
  Workspaces workspaces(keys + values + work + biases + BIAS_OVERRUN);
  const size_t parts = std::clamp<size_t>(ENOUGH_ITEMS / (B * H), 1, std::max<size_t>(1, N / FEWEST_QUERIES));
  parallel.for_each(B * H * parts, [&](size_t item) {
    const size_t b = item / parts / H, h = item / parts % H, part = item % parts;
    const std::vector<int>& positions = counted[b];
    const int count = static_cast<int>(positions.size());
    float* const output = a.output + b * N * value_width + h * V;
    if (part == 0 && positions.size() < N)
      for (size_t n = 0; n < N; ++n)
        if (!a.mask[b * N + n]) std::fill_n(output + n * value_width, V, 0.0f);
    const int begin = static_cast<int>(count * part / parts), end = static_cast<int>(count * (part + 1) / parts);
    if (begin == end) return;

    Numbers workspace = workspaces.take();
    float* const own_biases = workspace.get() + keys + values + work;
    std::copy_n(a.distance_bias + h * biases, biases, own_biases);
    const AttentionHead head{a.query + b * N * width + h * K,
                             a.key + b * N * width + h * K,
                             a.value + b * N * value_width + h * V,
                             static_cast<long>(width),
                             static_cast<long>(value_width),
                             static_cast<long>(value_width),
                             a.K,
                             a.V,
                             positions.data(),
                             count,
                             a.scale,
                             biases == 0 ? nullptr : own_biases + N - 1,
                             {}};
    kernels.pack(head, workspace.get(), workspace.get() + keys);
    kernels.attend(head, workspace.get(), workspace.get() + keys, begin, end, workspace.get() + keys + values, output);
    workspaces.release(std::move(workspace));
  });
}

}  // namespace tightbeam
