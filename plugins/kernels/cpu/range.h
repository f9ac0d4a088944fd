// A range of tiles, rows or numbers, and its parts.
#pragma once

#include <algorithm>

namespace tightbeam {

struct Range {
  int begin, end;

  int size() const { return end - begin; }
  // Part i of `count`; each part has whole steps.
  Range part(long i, long count, int step = 1) const {
    const long steps = (size() - 1) / step + 1;
    return {static_cast<int>(begin + steps * i / count * step),
            std::min(end, static_cast<int>(begin + steps * (i + 1) / count * step))};
  }
};

}  // namespace tightbeam
