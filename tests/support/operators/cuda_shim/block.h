// A CUDA thread block on one thread of the host. Every CUDA thread is a fiber that runs until it waits. Which one
// is resumed next is set by an order, so that a missing barrier shows as a wrong result in one of the orders.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace shim {

struct Index {
  unsigned x, y, z;
};

inline Index current_thread, current_block, block_size, grid_size;

// The first four; every other number is the seed of a shuffled order.
enum Order {
  FORWARD,   // one after the other, from the first thread to the last
  BACKWARD,  // from the last to the first; so are the blocks
  FIRST,     // the first thread that may go on, so that low warps run ahead of the others
  LAST,      // the last one, so that high warps run ahead
};

constexpr int MAX_THREADS = 1024, WARP_SIZE = 32;
constexpr unsigned MAX_SHARED_BYTES = 227 * 1024;  // what a block of sm_90 can have
// Bytes of address space: a page takes memory once it is touched. Below each stack is a gap that no write passes.
constexpr size_t STACK_BYTES = 256 * 1024, GAP_BYTES = 64 * 1024;

class Block {
 public:
  // Runs `body` as `threads` CUDA threads until all have ended.
  void run(int threads, unsigned shared_bytes, int order, const std::function<void()>& body) {
    threads_ = threads;
    order_ = order;
    random_.seed(static_cast<unsigned>(order));
    body_ = &body;
    error_.clear();
    at_barrier_ = barrier_sum_ = cursor_ = 0;
    prepare_shared(shared_bytes);
    for (Warp& warp : warps_) warp = Warp{};
    for (int i = 0; i < threads; ++i) {
      if (!fibers_[i].usable) create(i);
      fibers_[i].groups.clear();
      fibers_[i].groups.emplace_back();
      set_ready(i);
    }
    const int first = next();
    current_ = MAIN;
    switch_to(first);
    if (!error_.empty()) {
      for (int i = 0; i < threads; ++i) fibers_[i].usable = false;  // they are in the middle of a kernel
      std::memset(ready_, 0, sizeof ready_);
      throw std::runtime_error(error_);
    }
    check_shared_guard();
  }

  unsigned char* shared() const { return shared_; }
  unsigned shared_bytes() const { return shared_bytes_; }
  int order() const { return order_; }
  int lane() const { return current_ % WARP_SIZE; }

  // Waits for every thread of the block; returns the sum of what they gave.
  int barrier(int value) {
    barrier_sum_ += value;
    Fiber& self = fibers_[current_];
    self.state = AT_BARRIER;
    if (++at_barrier_ < threads_) {
      wait();
    } else {
      const int sum = barrier_sum_;
      at_barrier_ = barrier_sum_ = 0;
      for (int i = 0; i < threads_; ++i) {
        fibers_[i].barrier_sum = sum;
        set_ready(i);
      }
      wait();  // so that it need not be the last one that goes on first
    }
    return fibers_[current_].barrier_sum;
  }

  // What a lane brings to an operation of its warp, and where the result goes.
  struct Part {
    const void* input;
    void* output;
    int argument;
  };
  // Computes the results of all lanes in `mask` at once, from the parts of those lanes.
  using Operation = void (*)(unsigned mask, const Part* parts);

  // Waits for the lanes of `mask`; the last one to arrive computes for all.
  void warp_operation(unsigned mask, Operation operation, const char* name, const Part& part) {
    const int lane = current_ % WARP_SIZE;
    Warp& warp = warps_[current_ / WARP_SIZE];
    if (!(mask >> lane & 1)) fail(std::string(name) + ": the mask does not name the lane itself");
    Fiber& self = fibers_[current_];
    self.state = AT_WARP_OPERATION;
    self.name = name;
    warp.parts[lane] = part;
    warp.masks[lane] = mask;
    warp.operations[lane] = operation;
    warp.arrived |= 1u << lane;
    if ((warp.arrived & mask) == mask) {
      for (int i = 0; i < WARP_SIZE; ++i)
        if ((mask >> i & 1) && (warp.masks[i] != mask || warp.operations[i] != operation))
          fail(std::string(name) + ": lanes of one mask came with different masks or operations");
      operation(mask, warp.parts);
      warp.arrived &= ~mask;
      for (int i = 0; i < WARP_SIZE; ++i)
        if (mask >> i & 1) set_ready(current_ / WARP_SIZE * WARP_SIZE + i);
    }
    wait();
  }

  // Asynchronous copies take place as early as they may in odd orders, as late as they may in even ones.
  void copy_async(void* to, const void* from, size_t bytes) {
    if (order_ % 2)
      std::memcpy(to, from, bytes);
    else
      fibers_[current_].groups.back().push_back({to, from, bytes});
  }
  void copy_async_commit() { fibers_[current_].groups.emplace_back(); }
  void copy_async_wait(size_t pending) {
    auto& groups = fibers_[current_].groups;  // the last one is open: no wait reaches it
    while (groups.size() - 1 > pending) {
      for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
      groups.erase(groups.begin());
    }
  }

  // Ends the launch with an error, from within a CUDA thread.
  [[noreturn]] void fail(const std::string& message) {
    const unsigned thread = static_cast<unsigned>(current_);
    error_ = message + " (thread " + std::to_string(thread) + " of block " + std::to_string(current_block.x) + ", " +
             std::to_string(current_block.y) + ", " + std::to_string(current_block.z) + ")";
    switch_to(MAIN);
    std::abort();
  }

 private:
  enum State { READY, AT_BARRIER, AT_WARP_OPERATION, ENDED };
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Fiber {
    State state;
    const char* name;
    int barrier_sum;
    void* stack;
    bool usable, entered;
    ucontext_t context;
    jmp_buf point;
    void* fake_stack;
    std::vector<std::vector<Copy>> groups;
  };
  struct Warp {
    unsigned arrived;
    Part parts[WARP_SIZE];
    unsigned masks[WARP_SIZE];
    Operation operations[WARP_SIZE];
  };
  static constexpr int MAIN = MAX_THREADS;
  static constexpr unsigned char GUARD = 0xa5;
  static constexpr size_t GUARD_BYTES = 256;

  // Places in the order of resuming: threads themselves, or counted from the last one.
  int place(int thread) const { return order_ == BACKWARD || order_ == LAST ? threads_ - 1 - thread : thread; }

  void set_ready(int thread) {
    fibers_[thread].state = READY;
    ready_[place(thread) / 32] |= 1u << place(thread) % 32;
  }

  // Takes the thread to resume next out of those that are ready; -1 if none is.
  int next() {
    int start = 0;
    if (order_ == FORWARD || order_ == BACKWARD) start = cursor_;
    if (order_ > LAST) start = static_cast<int>(random_() % static_cast<unsigned>(threads_));
    for (int step = 0; step <= MAX_THREADS / 32; ++step) {
      const int word = (start / 32 + step) % (MAX_THREADS / 32);
      unsigned bits = ready_[word];
      if (step == 0) bits &= ~0u << start % 32;
      if (!bits) continue;
      const int found = word * 32 + __builtin_ctz(bits);
      ready_[word] &= ~(1u << found % 32);
      cursor_ = (found + 1) % MAX_THREADS;
      return place(found);  // its own inverse
    }
    return -1;
  }

  // Lets others run until this thread is resumed.
  void wait() {
    const int other = next();
    if (other < 0) fail(deadlock());
    switch_to(other);
  }

  std::string deadlock() const {
    int counts[4] = {};
    const char* name = "";
    for (int i = 0; i < threads_; ++i) {
      ++counts[fibers_[i].state];
      if (fibers_[i].state == AT_WARP_OPERATION) name = fibers_[i].name;
    }
    return "deadlock: of " + std::to_string(threads_) + " threads " + std::to_string(counts[AT_BARRIER]) +
           " wait at __syncthreads, " + std::to_string(counts[AT_WARP_OPERATION]) + " at " +
           (*name ? name : "a warp operation") + ", and " + std::to_string(counts[ENDED]) + " have ended";
  }

  // A fiber runs one kernel after the other.
  static void enter() {
    Block& block = instance();
    block.finish_switch();
    for (;;) {
      (*block.body_)();
      Fiber& self = block.fibers_[block.current_];
      self.state = ENDED;
      const int other = block.next();
      if (other < 0 && !block.all_ended()) block.fail(block.deadlock());
      block.switch_to(other < 0 ? MAIN : other);
    }
  }

  bool all_ended() const {
    for (int i = 0; i < threads_; ++i)
      if (fibers_[i].state != ENDED) return false;
    return true;
  }

  __attribute__((noinline)) void switch_to(int target) {
    Fiber &from = fibers_[current_], &to = fibers_[target];
    if (current_ == target) return;
    current_ = target;
    if (target != MAIN) {
      const unsigned t = static_cast<unsigned>(target);
      current_thread = {t % block_size.x, t / block_size.x % block_size.y, t / block_size.x / block_size.y};
    }
    start_switch(from, to);
#if defined(__SANITIZE_ADDRESS__)
    swapcontext(&from.context, &to.context);
#else
    // swapcontext is a system call each time, so it serves for the first entry alone.
    if (_setjmp(from.point) == 0) {
      if (target != MAIN && !to.entered) {
        to.entered = true;
        setcontext(&to.context);
      }
      _longjmp(to.point, 1);
    }
#endif
    finish_switch();
  }

#if defined(__SANITIZE_ADDRESS__)
  void start_switch(Fiber& from, Fiber& to) {
    const bool to_main = &to == &fibers_[MAIN];
    __sanitizer_start_switch_fiber(&from.fake_stack, to_main ? main_stack_ : to.stack,
                                   to_main ? main_stack_bytes_ : STACK_BYTES);
    left_main_ = &from == &fibers_[MAIN];
  }
  void finish_switch() {
    const void* stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fibers_[current_].fake_stack, &stack, &bytes);
    if (left_main_) main_stack_ = stack, main_stack_bytes_ = bytes;
  }
  const void* main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
  bool left_main_ = false;
#else
  void start_switch(Fiber&, Fiber&) {}
  void finish_switch() {}
#endif

  // A fiber that has not begun; its stack is allocated once and reused.
  void create(int thread) {
    Fiber& fiber = fibers_[thread];
    if (!fiber.stack) {
      void* memory = mmap(nullptr, STACK_BYTES + GAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) throw std::runtime_error("no memory for the stack of a fiber");
      mprotect(memory, GAP_BYTES, PROT_NONE);
      fiber.stack = static_cast<unsigned char*>(memory) + GAP_BYTES;
    }
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber.stack, STACK_BYTES);  // it may have been left in the middle of a kernel
#endif
    fiber.usable = true;
    fiber.entered = false;
    fiber.fake_stack = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }

  // Bytes of 0xff are NaN in every float type and -1 in every integer.
  void prepare_shared(unsigned bytes) {
    std::free(shared_);
    shared_ = nullptr;
    shared_bytes_ = bytes;
#if defined(__SANITIZE_ADDRESS__)
    const size_t guard = 0;  // the sanitizer reports the first byte beyond
#else
    const size_t guard = GUARD_BYTES;
#endif
    if (posix_memalign(reinterpret_cast<void**>(&shared_), 128, bytes + guard) != 0)
      throw std::runtime_error("no memory for a block's shared memory");
    std::memset(shared_, 0xff, bytes);
    std::memset(shared_ + bytes, GUARD, guard);
  }

  void check_shared_guard() const {
#if !defined(__SANITIZE_ADDRESS__)
    for (size_t i = 0; i < GUARD_BYTES; ++i)
      if (shared_[shared_bytes_ + i] != GUARD)
        throw std::runtime_error("a kernel wrote " + std::to_string(i) + " bytes beyond its " +
                                 std::to_string(shared_bytes_) + " bytes of shared memory");
#endif
  }

 public:
  static Block& instance() {
    static Block* block = new Block();  // never destroyed: fibers hold references to it
    return *block;
  }

 private:
  Fiber fibers_[MAX_THREADS + 1] = {};
  Warp warps_[MAX_THREADS / WARP_SIZE] = {};
  unsigned ready_[MAX_THREADS / 32] = {};
  int threads_ = 0, order_ = 0, cursor_ = 0, current_ = MAIN, at_barrier_ = 0, barrier_sum_ = 0;
  std::mt19937 random_;
  const std::function<void()>* body_ = nullptr;
  std::string error_;
  unsigned char* shared_ = nullptr;
  unsigned shared_bytes_ = 0;
};

inline Block& block() { return Block::instance(); }

}  // namespace shim
