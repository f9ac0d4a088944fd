// The queries of a sample that share a key head, [M, H / G] of [R, H]: they go over its rows together.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tightbeam {

// Parts into which the queries of a key head are split, since few samples and key heads would leave threads idle. There
// are at most `enough` items in all, and each part has at least `fewest` queries.
inline int query_parts(int items, int queries, int enough, int fewest) {
  return std::clamp(enough / items, 1, std::max(1, queries / fewest));
}

// Index in [R, H] of the q-th query of sample b that shares key head g.
template <class Source>
size_t query_place(const Source& s, size_t b, size_t g, int q) {
  const int heads = s.H / s.G;  // heads that share a key head
  return (b * s.M + q / heads) * s.H + g * heads + q % heads;
}

}  // namespace tightbeam
