// The queries of a sample's beams that share a key head, [M, H / G] of [R, H], which attend together.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tightbeam {

// Few samples and key heads would leave threads idle: then a key head's queries are shared out too, in so many parts,
// where that gives no more than `enough` items and leaves each part `fewest` queries.
inline int query_parts(int items, int queries, int enough, int fewest) {
  return std::clamp(enough / items, 1, std::max(1, queries / fewest));
}

// Index in [R, H] of query q of sample b that shares key head g.
template <class Source>
size_t query_place(const Source& s, size_t b, size_t g, int q) {
  const int heads = s.H / s.G;  // that share a key head
  return (b * s.M + q / heads) * s.H + g * heads + q % heads;
}

}  // namespace tightbeam
