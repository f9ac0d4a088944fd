// Uninitialised memory that is aligned to a cache line.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace tightbeam {

constexpr int LINE = 64;  // bytes

struct FreeAligned {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{LINE}); }
};

template <class T>
using Aligned = std::unique_ptr<T[], FreeAligned>;

template <class T>
Aligned<T> aligned(size_t count) {
  return Aligned<T>(static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{LINE})));
}

}  // namespace tightbeam
