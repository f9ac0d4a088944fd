// BeamTopK as two CUDA kernels, which read the logits once.
//
// Both select the best C of many keys in one way, right for any keys and any C: each thread takes the best of its own,
// the C-th best of those is a bound that at most C threads have anything above, and what reaches the bound is ranked by
// counting. Keys are integers that order as (score descending, token ascending) does and are all different, so a rank
// is a place in the result.
#pragma once

#include "kernels/cuda/device.cuh"
#include "ops/beam_top_k/arguments.h"
#include "ops/beam_top_k/workspace.h"
#include "ops/ngram_block/kernel_cuda.cuh"
#ifndef __CUDACC_RTC__
#include "ops/beam_top_k/launch_plan.h"
#endif

namespace tightbeam::device {

using Key = unsigned long long;

// Unsigned numbers that order as the floats do; -0 and 0 are one.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// High half: what is to be highest; low half: what is to be lowest.
__device__ __forceinline__ Key make_key(float value, int index) {
  return static_cast<Key>(ordered(value)) << 32 | (0xffffffffu - static_cast<unsigned>(index));
}
__device__ __forceinline__ float value_of(Key key) { return from_ordered(static_cast<unsigned>(key >> 32)); }
__device__ __forceinline__ int index_of(Key key) { return static_cast<int>(0xffffffffu - static_cast<unsigned>(key)); }

__device__ __forceinline__ bool precedes(Key a, Key b) { return a > b; }
__device__ __forceinline__ bool precedes(const BeamTopKKey& a, const BeamTopKKey& b) {
  return a.total_and_beam != b.total_and_beam ? a.total_and_beam > b.total_and_beam
                                              : a.score_and_token > b.score_and_token;
}
__device__ __forceinline__ bool is_key(Key key) { return key != 0; }
__device__ __forceinline__ bool is_key(const BeamTopKKey& key) { return key.total_and_beam != 0; }

template <class AnyKey>
__device__ __forceinline__ int rank_among(const AnyKey& key, const AnyKey* keys, int count) {
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += precedes(keys[i], key);
  return rank;
}

// The C-th best of one key a thread; none if the block has not so many. `best`: shared, one key a thread, and one more.
template <class AnyKey>
__device__ AnyKey find_bound(const AnyKey& mine, int C, AnyKey* best) {
  const int threads = static_cast<int>(blockDim.x);
  best[threadIdx.x] = mine;
  if (threadIdx.x == 0) best[threads] = AnyKey{};
  __syncthreads();
  if (is_key(mine) && rank_among(mine, best, threads) == C - 1) best[threads] = mine;
  __syncthreads();
  return best[threads];
}

// One bit a token of a slice.
__device__ __forceinline__ void mark(unsigned* bits, long long place) {
  if (place >= 0 && place < TOP_K_SLICE) atomicOr(bits + place / 32, 1u << place % 32);
}
__device__ __forceinline__ bool marked(const unsigned* bits, int place) { return bits[place / 32] >> place % 32 & 1; }

// Settings of the processors, from the host or the device.
struct Settings {
  int ngram_size;
  bool normalize;
  float repetition_penalty;

  template <class Float>
  __device__ explicit Settings(const BeamTopKArguments<Float>& a)
      : ngram_size(a.ngram_size_at ? as_ngram_size(*a.ngram_size_at) : a.ngram_size),
        normalize(a.normalize_at ? *a.normalize_at : a.normalize),
        repetition_penalty(a.repetition_penalty_at ? *a.repetition_penalty_at : a.repetition_penalty) {}

  __device__ bool valid() const {
    return ngram_size >= 0 && repetition_penalty > 0.0f && repetition_penalty < infinity();
  }
};

// Returns true where a row's lengths, history and banned tokens are valid; marks those in the slice at `begin`.
template <class Float>
__device__ bool mark_processed(const BeamTopKArguments<Float>& a, const Settings& settings, long long row, int begin,
                               unsigned* penalised, unsigned* forbidden) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const long long* history = a.history + row * a.T;
  const int length = a.lengths[row / a.M];
  bool valid = length >= 1 && length <= a.T && settings.valid();
  for (int t = thread; valid && t < length; t += threads) {
    const long long token = history[t];
    valid = token >= 0 && token < a.vocabulary;
    const long long place = token - begin;
    if (settings.repetition_penalty != 1.0f) mark(penalised, place);
    if (place >= 0 && place < TOP_K_SLICE && repeats_newest(history, length, settings.ngram_size, t))
      mark(forbidden, place);
  }
  for (int i = thread; i < a.P; i += threads) {
    const long long token = a.banned[row * a.P + i];
    if (token < -1 || token >= a.vocabulary) valid = false;
    if (token >= 0) mark(forbidden, token - begin);
  }
  return valid;
}

// Grid: slices of all rows, one block each. To the workspace: the slice's share of the log-softmax, and the best C of
// its tokens by logit, forbidden ones as -inf. Penalised tokens are a list of their own: what the penalty makes of them
// is known once the whole row is; it keeps their order, and -inf.
template <class Float>
__global__ void __launch_bounds__(TOP_K_SLICE_THREADS, 3)
    beam_top_k_slices(BeamTopKArguments<Float> a, BeamTopKWorkspace w) {
  constexpr int NUMBERS = Pack<Float>::size, WORDS = TOP_K_SLICE / 32;
  const int thread = static_cast<int>(threadIdx.x), threads = TOP_K_SLICE_THREADS;
  unsigned* penalised = shared_memory<unsigned>();
  unsigned* forbidden = penalised + WORDS;
  float* scratch = shared_memory<float>(WORDS * 8);
  Key* best = shared_memory<Key>(WORDS * 8 + 128);
  Key* ranked = best + threads + 1;
  int* ranked_count = shared_memory<int>(WORDS * 8);  // in place of scratch, which is free by then

  const long long row = blockIdx.x / static_cast<unsigned>(w.slices);
  const Float* logits = a.logits + row * a.vocabulary;
  const int lead = (NUMBERS - unaligned_numbers(logits)) % NUMBERS;
  const int begin = static_cast<int>(blockIdx.x % static_cast<unsigned>(w.slices)) * TOP_K_SLICE - lead;

  // This thread's tokens: of pack i the numbers from place (i threads + thread) NUMBERS of the slice.
  const auto place_of = [&](int i) { return (i / NUMBERS * threads + thread) * NUMBERS + i % NUMBERS; };
  const auto exists = [&](int i) { return begin + place_of(i) >= 0 && begin + place_of(i) < a.vocabulary; };
  Pack<Float> packs[TOP_K_THREAD_TOKENS / NUMBERS];
#pragma unroll
  for (int i = 0; i < TOP_K_THREAD_TOKENS; i += NUMBERS) {
    Pack<Float>& pack = packs[i / NUMBERS];
    const Float* from = logits + (begin + place_of(i));
    if (exists(i) && exists(i + NUMBERS - 1)) {
      pack = load_16(from);
    } else {
#pragma unroll
      for (int j = 0; j < NUMBERS; ++j) pack.values[j] = exists(i + j) ? from[j] : from_float<Float>(-infinity());
    }
  }

  // Meanwhile the logits are on their way.
  for (int i = thread; i < 2 * WORDS; i += threads) penalised[i] = 0;
  __syncthreads();
  const Settings settings(a);
  bool valid = mark_processed(a, settings, row, begin, penalised, forbidden);

  float values[TOP_K_THREAD_TOKENS], row_max = -infinity();
#pragma unroll
  for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) {
    values[i] = to_float(packs[i / NUMBERS].values[i % NUMBERS]);
    if (isnan(values[i])) valid = false;
    row_max = values[i] > row_max ? values[i] : row_max;
  }

  valid = __syncthreads_and(valid);  // also ends the marking
  row_max = block_max(row_max, scratch);
  float sum = 0.0f;
  if (settings.normalize && !isinf(row_max)) {
#pragma unroll
    for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) sum += expf(values[i] - row_max);
    sum = block_sum(sum, scratch);
  }
  if (thread == 0) {
    w.slice_max[blockIdx.x] = valid ? row_max : not_a_number();
    w.sums[blockIdx.x] = sum;
  }
  if (!valid) return;

  for (int list = 0; list < w.lists; ++list) {
    const auto key_of = [&](int i) {
      const int place = place_of(i);
      if (!exists(i)) return Key{};
      if (marked(penalised, place) != (list == 1)) return Key{};
      return make_key(marked(forbidden, place) ? -infinity() : values[i], begin + place);
    };
    Key mine = 0;
#pragma unroll
    for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) {
      const Key key = key_of(i);
      mine = precedes(key, mine) ? key : mine;
    }
    if (thread == 0) *ranked_count = 0;
    const Key bound = find_bound(mine, a.C, best);
#pragma unroll
    for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) {
      const Key key = key_of(i);
      if (is_key(key) && !precedes(bound, key)) ranked[atomicAdd(ranked_count, 1)] = key;
    }
    __syncthreads();
    const int count = *ranked_count;
    Key* candidates = w.candidates + (static_cast<long long>(blockIdx.x) * w.lists + list) * w.listed;
    for (int i = thread; i < w.listed; i += threads)
      if (i >= count) candidates[i] = 0;
    for (int i = thread; i < count; i += threads) {
      const int rank = rank_among(ranked[i], ranked, count);
      if (rank < w.listed) candidates[rank] = ranked[i];
    }
    __syncthreads();  // before the next list reuses `ranked`
  }
}

// Grid: one block a sample. What the slices left of all its rows, with processed scores and beam scores, cut to C.
template <class Float>
__global__ void __launch_bounds__(TOP_K_SAMPLE_THREADS)
    beam_top_k_samples(BeamTopKArguments<Float> a, BeamTopKWorkspace w) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const long long sample = blockIdx.x, first_row = sample * a.M;
  BeamTopKKey* best = shared_memory<BeamTopKKey>();
  int* chosen_count = shared_memory<int>((static_cast<unsigned>(threads) + 1) * 16);
  float* shifts = shared_memory<float>((static_cast<unsigned>(threads) + 2) * 16);
  float* log_sums = shifts + a.M;

  const Settings settings(a);
  // Log-softmax of row m: (logit - shifts[m]) - log_sums[m].
  bool valid = true;
  for (int m = thread / WARP; m < a.M; m += threads / WARP) {
    const float* slice_max = w.slice_max + (first_row + m) * w.slices;
    const float* slice_sums = w.sums + (first_row + m) * w.slices;
    float row_max = -infinity(), row_sum = 0.0f;
    for (int s = thread % WARP; s < w.slices; s += WARP) {
      valid = valid && !isnan(slice_max[s]);
      row_max = slice_max[s] > row_max ? slice_max[s] : row_max;
    }
    row_max = warp_max(row_max);
    const float beam_score = a.beam_scores[first_row + m];
    if (isinf(row_max) || isnan(beam_score) || beam_score == infinity()) valid = false;
    for (int s = thread % WARP; settings.normalize && valid && s < w.slices; s += WARP)
      row_sum += slice_sums[s] * expf(slice_max[s] - row_max);
    row_sum = warp_sum(row_sum);
    if (thread % WARP == 0) {
      shifts[m] = settings.normalize ? row_max : 0.0f;
      log_sums[m] = settings.normalize ? logf(row_sum) : 0.0f;
    }
  }
  if (thread == 0) *chosen_count = 0;
  if (!__syncthreads_and(valid)) {
    for (long long c = sample * a.C + thread; c < (sample + 1) * a.C; c += threads) {
      a.scores[c] = not_a_number();
      a.beams[c] = 0;
      a.tokens[c] = -1;
    }
    return;
  }

  const long long row_keys = static_cast<long long>(w.slices) * w.lists * w.listed, keys = a.M * row_keys;
  const Key* candidates = w.candidates + sample * keys;
  const auto key_of = [&](long long i) {
    const Key candidate = candidates[i];
    if (!is_key(candidate)) return BeamTopKKey{};
    const int m = static_cast<int>(i / row_keys);
    float score = (value_of(candidate) - shifts[m]) - log_sums[m];
    if (i / w.listed % w.lists == 1)
      score = score < 0.0f ? score * settings.repetition_penalty : score / settings.repetition_penalty;
    return BeamTopKKey{make_key(score + a.beam_scores[first_row + m], m), make_key(score, index_of(candidate))};
  };
  BeamTopKKey mine = {};
  for (long long i = thread; i < keys; i += threads) {
    const BeamTopKKey key = key_of(i);
    if (precedes(key, mine)) mine = key;
  }
  const BeamTopKKey bound = find_bound(mine, a.C, best);
  BeamTopKKey* chosen = w.chosen + sample * keys;
  for (long long i = thread; i < keys; i += threads) {
    const BeamTopKKey key = key_of(i);
    if (is_key(key) && !precedes(bound, key)) chosen[atomicAdd(chosen_count, 1)] = key;
  }
  __syncthreads();
  const int count = *chosen_count;
  for (int i = thread; i < count; i += threads) {
    const int rank = rank_among(chosen[i], chosen, count);
    if (rank >= a.C) continue;
    const long long c = sample * a.C + rank;
    a.scores[c] = value_of(chosen[i].total_and_beam);
    a.beams[c] = index_of(chosen[i].total_and_beam);
    a.tokens[c] = index_of(chosen[i].score_and_token);
  }
}

}  // namespace tightbeam::device
