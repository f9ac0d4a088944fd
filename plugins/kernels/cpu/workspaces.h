// Memory for the items of a kernel.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cpu/aligned.h"

namespace tightbeam {

using Numbers = Aligned<float>;

// Memory of one size for items, used again by later ones: new memory costs page faults.
class Workspaces {
 public:
  explicit Workspaces(long count) : count_(count) {}

  Numbers take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return aligned<float>(count_);
    Numbers taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }

  void release(Numbers workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  const long count_;
  std::mutex mutex_;
  std::vector<Numbers> free_;
};

inline long whole_lines(long count) { return (count + 15) / 16 * 16; }

}  // namespace tightbeam
