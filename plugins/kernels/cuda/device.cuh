// Types and functions that all CUDA kernels share. They compile with nvcc, with NVRTC, and with a C++ compiler on the
// tests' host shim. All shared memory is dynamic, so that the launch sets its size and the shim can poison and guard
// it.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "cuda_shim.h"
#endif

namespace tightbeam::device {

constexpr unsigned WHOLE_WARP = 0xffffffffu;
constexpr int WARP = 32;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

// Conversions between float32 and a kernel's Float, rounded to the nearest even.
__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class Float>
__device__ __forceinline__ Float from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

constexpr float LOG2_E = 1.4426950408889634f;

// 2^value, to two units in the last place; 0 below the normal numbers of float32.
__device__ __forceinline__ float quick_exp2(float value) {
#ifdef __CUDACC__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
#else
  return exp2f(value);
#endif
}
// exp(value), to two units in the last place near 1.
__device__ __forceinline__ float quick_exp(float value) { return quick_exp2(value * LOG2_E); }
// exp(value) / 2^base, for large numbers that are near each other.
__device__ __forceinline__ float quick_exp_below(float value, float base) {
  return quick_exp2(fmaf(value, LOG2_E, -base));
}

// 16 bytes of numbers, which are loaded and stored at once.
template <class Float>
struct alignas(16) Pack {
  static constexpr int size = 16 / sizeof(Float);
  Float values[size];
};

#ifdef __CUDACC__

// The block's dynamic shared memory from a byte offset on. It begins at a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ T* shared_memory(unsigned byte_offset = 0) {
  extern __shared__ __align__(16) unsigned char tightbeam_shared_memory[];
  return reinterpret_cast<T*>(tightbeam_shared_memory + byte_offset);
}

// `from` and `to` are aligned to 16 bytes.
template <class Float>
__device__ __forceinline__ Pack<Float> load_16(const Float* from) {
  Pack<Float> pack;
  *reinterpret_cast<uint4*>(&pack) = *reinterpret_cast<const uint4*>(from);
  return pack;
}
template <class Float>
__device__ __forceinline__ void store_16(Float* to, const Pack<Float>& pack) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&pack);
}

// An address in shared memory as a number, for loops that advance it by constants.
using SharedAddress = unsigned;
__device__ __forceinline__ SharedAddress shared_address(const void* shared) {
  SharedAddress address = static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
  asm volatile("" : "+r"(address));  // so that it is not computed again at each use
  return address;
}

// Starts the copy of 16 bytes from global to shared memory. If `copies` is false, it writes zeros and reads nothing.
// The bytes are visible to this thread after copy_async_wait, and to other threads after a barrier.
__device__ __forceinline__ void copy_async_16_or_zeros(SharedAddress shared, const void* global, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(copies ? 16 : 0)
               : "memory");
}
// Ends a group of this thread's copies. An empty group counts too.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until all but the newest `pending` groups of this thread have arrived.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

// d += a b by a whole warp: a is 16x16, b is 16x8, d is 16x8 in float32. A register has two numbers, in its low and its
// high half. With g = lane / 4 and t = lane % 4:
//   a[0]: row g,     columns 2t, 2t+1     a[2]: row g,     columns 2t+8, 2t+9
//   a[1]: row g + 8, columns 2t, 2t+1     a[3]: row g + 8, columns 2t+8, 2t+9
//   b[0]: rows 2t, 2t+1 of column g       b[1]: rows 2t+8, 2t+9 of column g
//   d[0], d[1]: row g, columns 2t, 2t+1   d[2], d[3]: row g + 8
template <class Half>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4],
                                                           const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8x8 matrices of 16-bit numbers from shared memory by a whole warp. Lane i passes the address of row i % 8
// of matrix i / 8, aligned to 16 bytes. fragments[j] gets row lane / 4, columns 2 (lane % 4) and the next, of matrix j.
__device__ __forceinline__ void load_matrices(unsigned (&fragments)[4], SharedAddress address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(address)
               : "memory");
}
// Loads the transposed matrices: fragments[j] gets rows 2 (lane % 4) and the next, of column lane / 4.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&fragments)[4], SharedAddress address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned (&fragments)[4], const void* shared_row) {
  load_matrices(fragments, static_cast<SharedAddress>(__cvta_generic_to_shared(shared_row)));
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&fragments)[4], const void* shared_row) {
  load_matrices_transposed(fragments, static_cast<SharedAddress>(__cvta_generic_to_shared(shared_row)));
}

#endif  // __CUDACC__

// Reductions over a warp; every lane gets the result.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
  return value;
}
template <class T>
__device__ __forceinline__ T warp_max(T value) {
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(WHOLE_WARP, value, distance);
    value = other > value ? other : value;
  }
  return value;
}
__device__ __forceinline__ unsigned warp_max(unsigned value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(WHOLE_WARP, value);
#else
  return warp_max<unsigned>(value);
#endif
}

// The sum over a block of whole warps; every thread gets it. `scratch` is 32 entries of shared memory, free afterwards.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
  __syncthreads();
  value = scratch[0];
  for (unsigned i = 1; i < blockDim.x / WARP; ++i) value += scratch[i];
  __syncthreads();
  return value;
}

}  // namespace tightbeam::device
