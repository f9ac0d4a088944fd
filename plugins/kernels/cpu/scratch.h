// The working memory of a thread, which is used again by its later items.
#pragma once

#include <cstddef>

#include "kernels/cpu/aligned.h"

namespace tightbeam {

constexpr long up(long count, long step) { return (count + step - 1) / step * step; }

// A thread's memory. It grows to the size that the thread's largest item needs.
class Scratch {
 public:
  // Makes room for `bytes` bytes, all of which are free again.
  void reserve(size_t bytes) {
    used_ = 0;
    if (bytes <= size_) return;
    memory_.reset();
    size_ = 0;  // in case the allocation fails
    memory_ = aligned<unsigned char>(bytes);
    size_ = bytes;
  }

  template <class T>
  T* take(size_t count) {
    T* taken = reinterpret_cast<T*>(memory_.get() + used_);
    used_ += bytes_of<T>(count);
    return taken;
  }

  template <class T>
  static size_t bytes_of(size_t count) {
    return static_cast<size_t>(up(static_cast<long>(count * sizeof(T)), LINE));
  }

 private:
  Aligned<unsigned char> memory_;
  size_t size_ = 0, used_ = 0;
};

}  // namespace tightbeam
