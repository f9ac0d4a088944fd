// Work that is shared out over threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>

namespace tightbeam {

class Parallel {
 public:
  virtual ~Parallel() = default;

  // Calls run(i) for every i in [0, count), in any order and on several threads; returns when all are done. An item
  // costs about a microsecond beside its own work, so make items coarse.
  //
  // If a run raises an exception, all of them run again, in order and on this thread, which raises it again. So a run
  // must do the same when it is called twice. (std::exception_ptr could carry the exception over, but its inline
  // functions need a newer libstdc++ than ONNX Runtime's wheels do.)
  template <class Run>
  void for_each(size_t count, const Run& run) const {
    if (count == 1) return run(0);  // no threads for one item
    Shared<Run> shared{run};
    if (count > 0) share_out(count, Shared<Run>::item, &shared);
    if (shared.failed)
      for (size_t i = 0; i < count; ++i) run(i);
  }

  // Calls run(row) for every row in [0, count), with `rows` of them in an item.
  template <class Run>
  void for_each_row(long count, long rows, const Run& run) const {
    for_each(static_cast<size_t>((count - 1) / rows + 1), [&](size_t item) {
      const long begin = static_cast<long>(item) * rows, end = begin + rows < count ? begin + rows : count;
      for (long row = begin; row < end; ++row) run(row);
    });
  }

 private:
  template <class Run>
  struct Shared {
    const Run& run;
    std::atomic<bool> failed{false};

    explicit Shared(const Run& run) : run(run) {}

    // No exception may reach the thread pool's own code.
    static void item(void* pointer, size_t index) {
      Shared& shared = *static_cast<Shared*>(pointer);
      if (shared.failed.load(std::memory_order_relaxed)) return;
      try {
        shared.run(index);
      } catch (...) {
        shared.failed.store(true, std::memory_order_relaxed);
      }
    }
  };

  virtual void share_out(size_t count, void (*item)(void*, size_t), void* shared) const = 0;
};

// Runs one item after the other.
class Sequential final : public Parallel {
  void share_out(size_t count, void (*item)(void*, size_t), void* shared) const override {
    for (size_t i = 0; i < count; ++i) item(shared, i);
  }
};

}  // namespace tightbeam
