#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/beam_top_k/search.h"
#include "ops/dynamic_quantize_matmul/integer_rows.h"
#include "ops/quantized_beam_top_k/arguments.h"
#include "ops/quantized_matmul/row_tiles.h"

namespace tightbeam {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr int ROWS_TOGETHER = 8;                    // that are summed up together
constexpr int TILES = SEARCH_BLOCK / TILE_COLUMNS;  // of a block

// Whether all logits are computed at once: a search reads them, or many of them may be among the best.
bool is_whole(const QuantizedBeamTopKArguments<float>& a, size_t blocks) {
  const BeamTopKArguments<float>& search = a.search;
  return a.all_logits || search.repetition_penalty != 1 || !in_no_trie(search.trie_nodes, long{search.B} * search.M) ||
         2 * (static_cast<size_t>(search.C) + static_cast<size_t>(search.P) * search.M) > blocks * search.M;
}

// What is known of the logits once they are gone.
struct Summary {
  Summary(size_t rows, int vocabulary)
      : sums(rows, vocabulary), tiles((vocabulary - 1) / TILE_COLUMNS + 1), largest(aligned<float>(rows * tiles)) {}

  void add(const ProductBlock& block, bool normalize) {
    for (int first = 0; first < block.rows; first += ROWS_TOGETHER)
      sums.add(block.row + first, std::min(ROWS_TOGETHER, block.rows - first), block.first, block.columns,
               block.products + first * block.step, block.step, normalize,
               [&](size_t index, const float* logits, int count) {
                 float* of_tiles = &largest[index / sums.blocks * tiles + index % sums.blocks * TILES];
                 return largest_of_columns(logits, count, of_tiles);
               });
  }

  BlockSums sums;
  const size_t tiles;
  const Aligned<float> largest;  // of each tile, [rows, tiles]
};

// The best C tokens of a row, but for tokens whose logits are not above `least`.
std::vector<Candidate> best_of_tiles(const QuantizedMatMulArguments<float>& product, int C, size_t index,
                                     const SearchedRow& row, const Summary& summary, float least) {
  Best best(C, least);
  const float* largest = &summary.largest[index * summary.tiles];
  const RowTiles tiles(product, static_cast<long>(index));
  for (size_t block = 0; block < summary.sums.blocks; ++block) {
    if (row.largest(block) <= best.bound()) continue;
    const int end = static_cast<int>(std::min((block + 1) * TILES, summary.tiles));
    for (int tile = static_cast<int>(block) * TILES; tile < end; ++tile) {
      if (largest[tile] <= best.bound()) continue;
      float logits[TILE_COLUMNS];
      tiles.write(tile, logits);
      for (int i = 0; i < tiles.columns(tile); ++i)
        if (logits[i] > best.bound()) row.offer(best, tile * TILE_COLUMNS + i, logits[i]);
    }
  }
  for (const Candidate& changed : row.changed()) best.offer(changed);
  return best.sorted();
}

// Searches without the logits. Returns false if this does not pay.
bool search_summaries(const QuantizedMatMulArguments<float>& product, const BeamTopKArguments<float>& a,
                      const Parallel& parallel) {
  check_search(a);
  const size_t R = static_cast<size_t>(product.R);
  Summary summary(R, a.vocabulary);
  quantized_matmul_by_blocks(
      product, SEARCH_BLOCK, [&](const ProductBlock& block) { summary.add(block, a.normalize); }, parallel);
  std::vector<SearchedRow> rows;
  rows.reserve(R);
  for (size_t row = 0; row < R; ++row) rows.emplace_back(a, row, nullptr);
  std::vector<float> least(a.B);
  parallel.for_each(a.B, [&](size_t b) {
    for (int m = 0; m < a.M; ++m) rows[b * a.M + m].prepare(summary.sums);
    least[b] = least_total(a, &rows[b * a.M]);
  });
  if (std::count(least.begin(), least.end(), MINUS_INFINITY) > 0) return false;
  std::vector<std::vector<Candidate>> best(R);
  parallel.for_each(R, [&](size_t row) {
    best[row] = best_of_tiles(product, a.C, row, rows[row], summary, rows[row].logit_of(least[row / a.M]));
  });
  write_best(a, best);
  return true;
}

}  // namespace

void quantized_beam_top_k(const QuantizedBeamTopKArguments<float>& a, const Parallel& parallel) {
  QuantizedMatMulArguments<float> product = a.product.product;
  const IntegerRows rows(a.product.rows, product, parallel);
  const size_t blocks = static_cast<size_t>(product.Y - 1) / SEARCH_BLOCK + 1;
  if (!is_whole(a, blocks) && search_summaries(product, a.search, parallel)) return;
  BeamTopKArguments<float> search = a.search;
  Aligned<float> logits;
  if (product.products == nullptr) {
    logits = aligned<float>(static_cast<size_t>(product.R) * product.Y);
    search.logits = product.products = logits.get();
  }
  quantized_matmul(product, parallel);
  beam_top_k(search, parallel);
}

}  // namespace tightbeam
