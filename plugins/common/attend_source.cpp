// The queries of all beams that share a key head go over its rows together, tile by tile, so that each row is read once
// from memory. Masked positions are left out, not computed and masked.
#include "common/attend_source.h"

#include <algorithm>
#include <vector>

#include "common/attention.h"

namespace tightbeam {
namespace {

std::vector<std::vector<int>> counted_positions(const Source& source) {
  std::vector<std::vector<int>> counted(source.B);
  for (int b = 0; b < source.B; ++b)
    for (int n = 0; n < source.N; ++n)
      if (source.mask[static_cast<size_t>(b) * source.N + n]) counted[b].push_back(n);
  return counted;
}

// Few samples and key heads would leave threads idle: then a key head's queries are shared out too, in so many parts.
int query_parts(int items, int queries) {
  constexpr int ENOUGH_ITEMS = 8, FEWEST_QUERIES = 4;
  return std::clamp(ENOUGH_ITEMS / items, 1, std::max(1, queries / FEWEST_QUERIES));
}

}  // namespace

void attend_source(const Source& s, const Parallel& parallel) {
  const int heads = s.H / s.G;      // that share a key head
  const int queries = s.M * heads;  // of one sample and key head
  const int parts = query_parts(s.B * s.G, queries);
  const int K = s.keys.width, V = s.values.width;
  const std::vector<std::vector<int>> counted = counted_positions(s);
  parallel.for_each(static_cast<size_t>(s.B) * s.G * parts, [&](size_t item) {
    const size_t b = item / parts / s.G, g = item / parts % s.G, part = item % parts;
    const int first = static_cast<int>(queries * part / parts);
    const int count = static_cast<int>(queries * (part + 1) / parts) - first;
    const auto place = [&](int q) {  // of a query among [R, H]
      return (b * s.M + (first + q) / heads) * s.H + g * heads + (first + q) % heads;
    };
    Attention attention(count, K, V, s.scale);
    std::vector<float> rotated(s.rotation ? static_cast<size_t>(Attention::TILE) * K : 0);
    for (int q = 0; q < count; ++q) attention.set_query(q, s.query + place(q) * K);

    const float* const key = s.keys.data + b * s.keys.sample + g * s.keys.head;
    const float* const value = s.values.data + b * s.values.sample + g * s.values.head;
    const int positions = static_cast<int>(counted[b].size());
    std::vector<const float*> keys(positions), values(positions);
    for (int n = 0; n < positions; ++n) {
      keys[n] = key + counted[b][n] * s.keys.position;
      values[n] = value + counted[b][n] * s.values.position;
    }
    for (int start = 0; start < positions; start += Attention::TILE) {
      const int tile = std::min(Attention::TILE, positions - start);
      const int next = start + tile;
      const int next_tile = std::min(Attention::TILE, positions - next);
      if (s.rotation)
        for (int i = 0; i < tile; ++i) {
          float* const turned = &rotated[static_cast<size_t>(i) * K];
          s.rotation.turn(keys[start + i], turned, K, counted[b][start + i]);
          keys[start + i] = turned;
        }
      attention.dot(0, count, &keys[start], tile, {&values[start], tile, V});
      attention.weigh(0, count, tile);
      attention.add(0, count, &values[start], tile, V, 0, {keys.data() + next, next_tile, K});
    }
    for (int q = 0; q < count; ++q) {
      attention.write_output(q, s.output + place(q) * V);
      if (s.lse != nullptr) s.lse[place(q)] = attention.lse(q);
    }
  });
}

}  // namespace tightbeam
