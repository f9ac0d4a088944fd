// NGramBlock in CUDA. A block copies one slice of a row's scores and blocks the tokens in it. Every block of a row
// reads the whole history of the row, so that the blocks need not wait for one another.
#pragma once

#include "kernels/cuda/device.cuh"
#include "ops/ngram_block/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/ngram_block/launch_plan.h"
#endif

namespace tightbeam::device {

// True if the n-1 tokens of `history` before index `end` equal the newest n-1 of `length` tokens. It compares from the
// newest token back, so that it mostly ends after one comparison.
__device__ __forceinline__ bool repeats_newest(const long long* history, int length, int n, int end) {
  if (n < 1 || end < n - 1) return false;
  for (int back = 1; back < n; ++back)
    if (history[end - back] != history[length - back]) return false;
  return true;
}

// How many numbers there are from `from` to the next address that is a multiple of 16.
template <class Float>
__device__ __forceinline__ int unaligned_numbers(const Float* from) {
  return static_cast<int>((16 - reinterpret_cast<unsigned long long>(from) % 16) % 16 / sizeof(Float));
}

// Copies numbers with a whole block.
template <class Float>
__device__ void copy_numbers(Float* to, const Float* from, int count) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  int head = unaligned_numbers(from);
  if (head != unaligned_numbers(to) || head > count) head = count;  // there is no address where both are aligned
  const int packs = (count - head) / Pack<Float>::size;
  for (int i = thread; i < head; i += threads) to[i] = from[i];
  constexpr int AHEAD = 4;  // packs that are loaded at once, since a load waits for the stores before it
  const Float* const packs_from = from + head;
  Float* const packs_to = to + head;
  for (int first = thread; first < packs; first += AHEAD * threads) {
    Pack<Float> pack[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (first + i * threads < packs) pack[i] = load_16(packs_from + (first + i * threads) * Pack<Float>::size);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (first + i * threads < packs) store_16(packs_to + (first + i * threads) * Pack<Float>::size, pack[i]);
  }
  for (int i = head + packs * Pack<Float>::size + thread; i < count; i += threads) to[i] = from[i];
}

// A size beyond the largest int becomes that int; a negative one becomes -1.
__device__ __forceinline__ int as_ngram_size(long long size) {
  return static_cast<int>(size > 0x7fffffff ? 0x7fffffff : size < -1 ? -1 : size);
}

// Grid: R x slices. A row becomes NaN if its length is outside 1..T or a token is outside the vocabulary.
template <class Float>
__global__ void ngram_block(NGramBlockArguments<Float> a) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const long long row = blockIdx.x;
  const int slice = static_cast<int>(blockIdx.y), slices = static_cast<int>(gridDim.y);
  const int begin = static_cast<int>(static_cast<long long>(a.vocabulary) * slice / slices);
  const int end = static_cast<int>(static_cast<long long>(a.vocabulary) * (slice + 1) / slices);
  Float* blocked = a.blocked + row * a.vocabulary;
  if (a.scores != a.blocked) copy_numbers(blocked + begin, a.scores + row * a.vocabulary + begin, end - begin);
  __syncthreads();  // a blocked token must be written after its copy

  const long long* history = a.history + row * a.T;
  const int length = a.lengths[row], ngram_size = a.ngram_size_at ? as_ngram_size(*a.ngram_size_at) : a.ngram_size;
  bool valid = length >= 1 && length <= a.T && ngram_size >= 0;
  for (int t = thread; valid && t < length; t += threads) {
    const long long token = history[t];
    valid = token >= 0 && token < a.vocabulary;
    if (token >= begin && token < end && repeats_newest(history, length, ngram_size, t))
      blocked[token] = from_float<Float>(-infinity());
  }
  if (__syncthreads_and(valid)) return;
  for (int i = begin + thread; i < end; i += threads) blocked[i] = from_float<Float>(not_a_number());
}

}  // namespace tightbeam::device
