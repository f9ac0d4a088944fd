// CUDA's vocabulary as far as the kernels use it, on the host; and launch(), which runs a kernel's blocks one by one.
// There is no __shared__: kernels take all shared memory through shared_memory<T>().
#pragma once

#include <math.h>

#include <cmath>
#include <cstring>

#include "block.h"
#include "kernels/cuda/launch.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::shim::current_thread)
#define blockIdx (::shim::current_block)
#define blockDim (::shim::block_size)
#define gridDim (::shim::grid_size)

// ---- types

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __int_as_float(int value) {
  float result;
  std::memcpy(&result, &value, 4);
  return result;
}
inline float __uint_as_float(unsigned value) {
  float result;
  std::memcpy(&result, &value, 4);
  return result;
}
inline int __float_as_int(float value) {
  int result;
  std::memcpy(&result, &value, 4);
  return result;
}
inline unsigned __float_as_uint(float value) {
  unsigned result;
  std::memcpy(&result, &value, 4);
  return result;
}

inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const unsigned bits = __float_as_uint(value);
  if (std::isnan(value)) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  const float sign = value.bits >> 15 ? -1.f : 1.f;
  if (exponent == 31) return fraction ? __int_as_float(0x7fffffff) : sign * __int_as_float(0x7f800000);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}
inline __half __float2half_rn(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return {0x7fff};
  if (size >= 65520.f) return {static_cast<uint16_t>(sign | 0x7c00)};
  int exponent = -14;
  if (size >= 0x1p-14f) exponent = std::ilogb(size);
  // Steps of 2^(exponent-10); a carry out of the fraction moves into the exponent by itself.
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  const int normal = size >= 0x1p-14f ? (exponent + 14) * 1024 : 0;
  return {static_cast<uint16_t>(sign | (normal + steps))};
}
inline __half __float2half(float value) { return __float2half_rn(value); }
inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }

// ---- arithmetic

using std::isinf;
using std::isnan;
inline float rsqrtf(float value) { return 1.f / std::sqrt(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float value) { return 1.f / value; }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value ? __builtin_clz(static_cast<unsigned>(value)) : 32; }
inline int __ffs(int value) { return __builtin_ffs(value); }
template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
inline T __ldg(const T* from) {
  return *from;
}

// ---- threads and memory

inline void __syncthreads() { shim::block().barrier(0); }
inline int __syncthreads_count(int value) { return shim::block().barrier(value != 0); }
inline int __syncthreads_or(int value) { return shim::block().barrier(value != 0) != 0; }
inline int __syncthreads_and(int value) {
  return shim::block().barrier(value != 0) == static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// All CUDA threads run on one thread of the host, so a plain update is atomic.
template <class T, class U>
inline T atomicAdd(T* to, U value) {
  const T old = *to;
  *to = static_cast<T>(old + value);
  return old;
}
template <class T, class U>
inline T atomicMax(T* to, U value) {
  const T old = *to;
  if (static_cast<T>(value) > old) *to = value;
  return old;
}
template <class T, class U>
inline T atomicMin(T* to, U value) {
  const T old = *to;
  if (static_cast<T>(value) < old) *to = value;
  return old;
}
template <class T, class U>
inline T atomicOr(T* to, U value) {
  const T old = *to;
  *to = old | value;
  return old;
}
template <class T, class U>
inline T atomicAnd(T* to, U value) {
  const T old = *to;
  *to = old & value;
  return old;
}
template <class T, class U>
inline T atomicExch(T* to, U value) {
  const T old = *to;
  *to = value;
  return old;
}
template <class T, class U, class W>
inline T atomicCAS(T* to, U expected, W value) {
  const T old = *to;
  if (old == static_cast<T>(expected)) *to = value;
  return old;
}

// ---- warps

namespace shim {

using Part = Block::Part;

// Which lane a lane reads from, given its argument; its own if that is beyond the section of `width` lanes.
using Source = int (*)(int lane, int argument, int width);

inline int source_index(int lane, int argument, int width) { return lane / width * width + (argument & (width - 1)); }
inline int source_up(int lane, int argument, int width) { return lane % width < argument ? lane : lane - argument; }
inline int source_down(int lane, int argument, int width) {
  return lane % width + argument >= width ? lane : lane + argument;
}
inline int source_xor(int lane, int argument, int width) {
  const int source = lane ^ argument;
  return source / width > lane / width ? lane : source;
}

template <class T, Source source>
void shuffle_lanes(unsigned mask, const Part* parts) {
  for (int lane = 0; lane < WARP_SIZE; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const int from = source(lane, parts[lane].argument & 0xffff, parts[lane].argument >> 16);
    // A lane that takes no part has no defined value.
    if (mask >> from & 1)
      std::memcpy(parts[lane].output, parts[from].input, sizeof(T));
    else
      std::memset(parts[lane].output, 0xff, sizeof(T));
  }
}

template <Source source, class T>
T shuffle(unsigned mask, const char* name, T value, int argument, int width) {
  T result;
  block().warp_operation(mask, shuffle_lanes<T, source>, name, {&value, &result, argument | width << 16});
  return result;
}

inline void ballot_lanes(unsigned mask, const Part* parts) {
  unsigned votes = 0;
  for (int lane = 0; lane < WARP_SIZE; ++lane)
    if (mask >> lane & 1) votes |= static_cast<unsigned>(parts[lane].argument) << lane;
  for (int lane = 0; lane < WARP_SIZE; ++lane)
    if (mask >> lane & 1) *static_cast<unsigned*>(parts[lane].output) = votes;
}

inline unsigned ballot(unsigned mask, const char* name, bool vote) {
  unsigned votes;
  block().warp_operation(mask, ballot_lanes, name, {nullptr, &votes, vote});
  return votes;
}

inline void sync_lanes(unsigned, const Part*) {}

}  // namespace shim

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return shim::shuffle<shim::source_index>(mask, "__shfl_sync", value, source & 0xffff, width);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  return shim::shuffle<shim::source_up>(mask, "__shfl_up_sync", value, static_cast<int>(distance), width);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  return shim::shuffle<shim::source_down>(mask, "__shfl_down_sync", value, static_cast<int>(distance), width);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return shim::shuffle<shim::source_xor>(mask, "__shfl_xor_sync", value, bits, width);
}
inline unsigned __ballot_sync(unsigned mask, int vote) { return shim::ballot(mask, "__ballot_sync", vote != 0); }
inline int __any_sync(unsigned mask, int vote) { return shim::ballot(mask, "__any_sync", vote != 0) != 0; }
inline int __all_sync(unsigned mask, int vote) { return shim::ballot(mask, "__all_sync", vote != 0) == mask; }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  shim::block().warp_operation(mask, shim::sync_lanes, "__syncwarp", {nullptr, nullptr, 0});
}

// ---- what device.cuh has in PTX; documented there

namespace tightbeam::device {

inline float to_float(__half value);
inline float to_float(__nv_bfloat16 value);
template <class Float>
struct Pack;

inline void check_aligned(const void* address, const char* name) {
  if (reinterpret_cast<uintptr_t>(address) % 16) shim::block().fail(std::string(name) + ": not aligned to 16 bytes");
}

template <class T>
T* shared_memory(unsigned byte_offset = 0) {
  if (byte_offset % alignof(T)) shim::block().fail("shared_memory: the offset is not aligned to the type");
  return reinterpret_cast<T*>(shim::block().shared() + byte_offset);
}

template <class Float>
Pack<Float> load_16(const Float* from) {
  check_aligned(from, "load_16");
  Pack<Float> pack;
  std::memcpy(&pack, from, 16);
  return pack;
}
template <class Float>
void store_16(Float* to, const Pack<Float>& pack) {
  check_aligned(to, "store_16");
  std::memcpy(to, &pack, 16);
}

using SharedAddress = uintptr_t;
inline SharedAddress shared_address(const void* shared) { return reinterpret_cast<SharedAddress>(shared); }
inline void copy_async_16_or_zeros(SharedAddress shared, const void* global, bool copies) {
  alignas(16) static const unsigned char zeros[16] = {};
  void* to = reinterpret_cast<void*>(shared);
  const void* from = copies ? global : zeros;
  check_aligned(to, "copy_async_16_or_zeros");
  check_aligned(from, "copy_async_16_or_zeros");
  shim::block().copy_async(to, from, 16);
}
inline void copy_async_commit() { shim::block().copy_async_commit(); }
template <int pending>
void copy_async_wait() {
  shim::block().copy_async_wait(pending);
}

struct Fragments {
  const unsigned *a, *b;
  float* d;
};

// Column 2t or 2t+1 of the register pair that lane 4g + t holds.
template <class Half>
float half_of(unsigned two, int which) {
  return to_float(Half{static_cast<uint16_t>(two >> 16 * which)});
}

template <class Half>
void mma_lanes(unsigned, const shim::Part* parts) {
  const auto lane = [&](int i) { return *static_cast<const Fragments*>(parts[i].input); };
  float a[16][16], b[16][8];
  for (int i = 0; i < 32; ++i)
    for (int r = 0; r < 4; ++r)
      for (int which = 0; which < 2; ++which) {
        a[i / 4 + r % 2 * 8][i % 4 * 2 + r / 2 * 8 + which] = half_of<Half>(lane(i).a[r], which);
        if (r < 2) b[i % 4 * 2 + r * 8 + which][i / 4] = half_of<Half>(lane(i).b[r], which);
      }
  for (int i = 0; i < 32; ++i)
    for (int r = 0; r < 4; ++r)
      for (int k = 0; k < 16; ++k) lane(i).d[r] += a[i / 4 + r / 2 * 8][k] * b[k][i % 4 * 2 + r % 2];
}

template <class Half>
void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const Fragments fragments{a, b, d};
  shim::block().warp_operation(~0u, mma_lanes<Half>, "mma_16x8x16", {&fragments, nullptr, 0});
}

// A lane's input is its row's address, its output the four registers.
template <bool transposed>
void load_matrices_lanes(unsigned, const shim::Part* parts) {
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < 4; ++j) {
      const auto element = [&](int row, int column) -> unsigned {
        return static_cast<const uint16_t*>(parts[j * 8 + row].input)[column];
      };
      const int major = i / 4, minor = i % 4 * 2;
      static_cast<unsigned*>(parts[i].output)[j] = transposed ? element(minor, major) | element(minor + 1, major) << 16
                                                              : element(major, minor) | element(major, minor + 1) << 16;
    }
}

inline void load_matrices(unsigned (&fragments)[4], const void* shared_row) {
  check_aligned(shared_row, "load_matrices");
  shim::block().warp_operation(~0u, load_matrices_lanes<false>, "load_matrices", {shared_row, fragments, 0});
}
inline void load_matrices_transposed(unsigned (&fragments)[4], const void* shared_row) {
  check_aligned(shared_row, "load_matrices_transposed");
  shim::block().warp_operation(~0u, load_matrices_lanes<true>, "load_matrices_transposed", {shared_row, fragments, 0});
}

inline void load_matrices(unsigned (&fragments)[4], SharedAddress address) {
  load_matrices(fragments, reinterpret_cast<const void*>(address));
}
inline void load_matrices_transposed(unsigned (&fragments)[4], SharedAddress address) {
  load_matrices_transposed(fragments, reinterpret_cast<const void*>(address));
}

}  // namespace tightbeam::device

// ---- launching

namespace shim {

// Runs the kernel's blocks one after the other, threads resumed as `order` says. Raises std::runtime_error.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const tightbeam::Launch& launch, int order, Arguments... arguments) {
  const int *grid = launch.grid, threads = launch.block;
  if (threads < 1 || threads > MAX_THREADS || threads % WARP_SIZE)
    throw std::runtime_error("launch: " + std::to_string(threads) + " threads, expected 32, 64, ... 1024");
  if (launch.shared_bytes > MAX_SHARED_BYTES)
    throw std::runtime_error("launch: " + std::to_string(launch.shared_bytes) + " bytes of shared memory");
  if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[1] > 65535 || grid[2] > 65535)
    throw std::runtime_error("launch: a grid of " + std::to_string(grid[0]) + " x " + std::to_string(grid[1]) + " x " +
                             std::to_string(grid[2]) + " blocks");
  block_size = {static_cast<unsigned>(threads), 1, 1};
  grid_size = {static_cast<unsigned>(grid[0]), static_cast<unsigned>(grid[1]), static_cast<unsigned>(grid[2])};
  const std::function<void()> body = [&] { kernel(arguments...); };
  const unsigned blocks = grid_size.x * grid_size.y * grid_size.z;
  for (unsigned step = 0; step < blocks; ++step) {
    const unsigned b = order == BACKWARD || order == LAST ? blocks - 1 - step : step;
    current_block = {b % grid_size.x, b / grid_size.x % grid_size.y, b / grid_size.x / grid_size.y};
    block().run(threads, launch.shared_bytes, order, body);
  }
}

}  // namespace shim
