// Work shared out over threads, the runtime's or our own.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <type_traits>
#include <vector>

namespace tightbeam {

class Parallel {
 public:
  virtual ~Parallel() = default;

  // Calls run(i) for every i in [0, count), in any order and on several threads; returns when all are done.
  // Where a run raises an exception, all of them run again, in order and on this thread, which raises it again; so a
  // run must give the same when it is called twice. (std::exception_ptr would carry the exception over, but its inline
  // functions need a libstdc++ newer than the one that ONNX Runtime's wheels need.)
  // An item costs about a microsecond beside its own work, so make them coarse.
  template <class Run>
  void for_each(size_t count, const Run& run) const {
    if (count == 1) return run(0);  // no threads for one item
    Shared<Run> shared{run};
    if (count > 0) share_out(count, Shared<Run>::item, &shared);
    if (shared.failed)
      for (size_t i = 0; i < count; ++i) run(i);
  }

 private:
  template <class Run>
  struct Shared {
    const Run& run;
    std::atomic<bool> failed{false};

    explicit Shared(const Run& run) : run(run) {}

    // Nothing may escape into the thread pool's own code.
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

// One item after the other.
class Sequential final : public Parallel {
  void share_out(size_t count, void (*item)(void*, size_t), void* shared) const override {
    for (size_t i = 0; i < count; ++i) item(shared, i);
  }
};

// Threads of its own, for programs without a runtime.
class Threads final : public Parallel {
 public:
  explicit Threads(size_t threads) : threads_(threads) {}

 private:
  void share_out(size_t count, void (*item)(void*, size_t), void* shared) const override {
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i; (i = next.fetch_add(1)) < count;) item(shared, i);
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads_ && i < count; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

  size_t threads_;
};

}  // namespace tightbeam
