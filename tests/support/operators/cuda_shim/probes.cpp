// Kernels that show how faithful the host shim is: right ones, and ones with errors that it has to find.
#include "entry.h"
#include "kernels/cuda/device.cuh"

using namespace tightbeam;

namespace {

using device::shared_memory;

// Turns 256 numbers round through shared memory. Fault: no barrier between write and read.
void reverse_without_barrier(float* numbers) {
  float* shared = shared_memory<float>();
  shared[threadIdx.x] = numbers[threadIdx.x];
  numbers[threadIdx.x] = shared[255 - threadIdx.x];
}
void reverse(float* numbers) {
  float* shared = shared_memory<float>();
  shared[threadIdx.x] = numbers[threadIdx.x];
  __syncthreads();
  numbers[threadIdx.x] = shared[255 - threadIdx.x];
}
// The sum of all numbers, twice through the same memory.
void reduce(float* numbers) {
  float* scratch = shared_memory<float>();
  const float own = numbers[threadIdx.x];
  const float sum = device::block_sum(own, scratch), sum_of_halves = device::block_sum(own / 2, scratch);
  numbers[threadIdx.x] = sum + sum_of_halves;
}
void start_copy(float* shared, const float* numbers) {
  if (threadIdx.x < 64)
    device::copy_async_16_or_zeros(device::shared_address(shared + threadIdx.x * 4), numbers + threadIdx.x * 4, true);
  device::copy_async_commit();
}
void copy_without_wait(float* numbers) {
  float* shared = shared_memory<float>();
  start_copy(shared, numbers);
  __syncthreads();
  numbers[threadIdx.x] = shared[255 - threadIdx.x];
}
void wait_too_late(float* numbers) {
  float* shared = shared_memory<float>();
  start_copy(shared, numbers);
  __syncthreads();
  device::copy_async_wait<0>();
  numbers[threadIdx.x] = shared[255 - threadIdx.x];
}
void copy_and_wait(float* numbers) {
  float* shared = shared_memory<float>();
  start_copy(shared, numbers);
  device::copy_async_wait<0>();
  __syncthreads();
  numbers[threadIdx.x] = shared[255 - threadIdx.x];
}
void barrier_for_some(float*) {
  if (threadIdx.x >= 3) __syncthreads();
}
void shuffle_for_some(float* numbers) {
  if (threadIdx.x % 32 < 16) numbers[threadIdx.x] = device::warp_sum(numbers[threadIdx.x]);
}
void different_masks(float* numbers) {
  const unsigned mask = threadIdx.x % 32 < 16 ? 0xffffffffu : 0xfffffffeu;
  numbers[threadIdx.x] = __shfl_xor_sync(mask, numbers[threadIdx.x], 2);
}
void beyond_shared(float* numbers) { shared_memory<float>()[threadIdx.x + 1] = numbers[threadIdx.x]; }
void unaligned_load(float* numbers) { numbers[threadIdx.x] = device::load_16(numbers + 1).values[0]; }

// d += a b of one 16 x 8 x 16 product: a, b and d lie row by row; fragments are loaded as the layout says.
template <class Half>
void product(const Half* a, const Half* b, float* d) {
  Half* shared_a = shared_memory<Half>();
  Half* shared_b = shared_a + 256;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared_a[i] = a[i];
  for (int i = lane; i < 128; i += 32) shared_b[i] = b[i];
  __syncwarp();
  unsigned fragments_a[4], fragments_b[4];
  device::load_matrices(fragments_a, shared_a + lane % 16 * 16 + lane / 16 * 8);
  device::load_matrices_transposed(fragments_b, shared_b + lane % 16 * 8);
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
  device::mma_16x8x16<Half>(sums, fragments_a, {fragments_b[0], fragments_b[1]});
  for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

}  // namespace

#define TIGHTBEAM_SHIM_PROBE(kernel)                                                             \
  extern "C" const char* kernel##_probe(float* numbers, int order) {                             \
    return shim::guarded([&] { shim::launch(kernel, {{1, 1, 1}, 256, 1024}, order, numbers); }); \
  }
TIGHTBEAM_SHIM_PROBE(reverse_without_barrier)
TIGHTBEAM_SHIM_PROBE(reverse)
TIGHTBEAM_SHIM_PROBE(reduce)
TIGHTBEAM_SHIM_PROBE(copy_without_wait)
TIGHTBEAM_SHIM_PROBE(wait_too_late)
TIGHTBEAM_SHIM_PROBE(copy_and_wait)
TIGHTBEAM_SHIM_PROBE(barrier_for_some)
TIGHTBEAM_SHIM_PROBE(shuffle_for_some)
TIGHTBEAM_SHIM_PROBE(different_masks)
TIGHTBEAM_SHIM_PROBE(beyond_shared)
TIGHTBEAM_SHIM_PROBE(unaligned_load)

extern "C" const char* product_float16(const __half* a, const __half* b, float* d, int order) {
  return shim::guarded([&] { shim::launch(product<__half>, {{1, 1, 1}, 32, 768}, order, a, b, d); });
}
extern "C" const char* product_bfloat16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d, int order) {
  return shim::guarded([&] { shim::launch(product<__nv_bfloat16>, {{1, 1, 1}, 32, 768}, order, a, b, d); });
}

// Rounding to the 16-bit types and back.
extern "C" void round_float16(const float* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = __half2float(__float2half_rn(from[i]));
}
extern "C" void round_bfloat16(const float* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = __bfloat162float(__float2bfloat16_rn(from[i]));
}
