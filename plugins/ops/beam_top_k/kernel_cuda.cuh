// BeamTopK in CUDA, as two kernels that read the logits once.
//
// Both select the best C of many keys in the same way. First they find a bound that at least C keys reach, from the
// best key of each thread, with a few instructions of a warp. Little more than C keys reach it as a rule, and these are
// ranked by counting. Keys are integers in the order (score descending, token ascending). They are all different, so
// that a rank is an index in the result.
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

// Maps floats to unsigned numbers in the same order; -0 and 0 become the same number.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// A key's high half is the value, of which the largest comes first; its low half is the index, of which the lowest
// does.
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

template <class AnyKey>
__device__ __forceinline__ int rank_among(const AnyKey& key, const AnyKey* keys, int count) {
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += precedes(keys[i], key);
  return rank;
}

// A bound that the `order` of at least C threads reaches, or 0. Each warp finds its (C / warps)-th best; the bound is
// the least of these. Called by a whole block. `floors` is shared memory for one number of each warp; the function ends
// with a barrier after it is written.
__device__ __forceinline__ unsigned reached_bound(int C, unsigned order, unsigned* floors) {
  constexpr int WARPS = TOP_K_THREADS / WARP;
  const int lane = static_cast<int>(threadIdx.x) % WARP;
  unsigned floor = 0;
#pragma unroll 1
  for (int taken = 0; taken < C; taken += WARPS) {
    floor = warp_max(order);
    if (floor == 0) break;
    if (lane == __ffs(static_cast<int>(__ballot_sync(WHOLE_WARP, order == floor))) - 1) order = 0;
  }
  if (lane == 0) floors[threadIdx.x / WARP] = floor;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; ++i) floor = min(floor, floors[i]);
  return floor;
}

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

// A slice of a row: the tokens `begin` to `end`; tokens below 0 do not exist. Each thread has TOP_K_THREAD_TOKENS of
// them, in packs of 16 bytes that neighbouring threads load together. A set of a thread's tokens is the bits of an
// unsigned.
template <class Float>
struct Slice {
  static constexpr int NUMBERS = Pack<Float>::size;
  int begin, end;

  // The token that bit i of a thread's sets stands for.
  __device__ int token(int thread, int i) const {
    return begin + (i / NUMBERS * TOP_K_THREADS + thread) * NUMBERS + i % NUMBERS;
  }
  // Adds a token to its thread's set. `sets` is shared memory with one set for each thread.
  __device__ void mark(unsigned* sets, long long token) const {
    if (token < begin || token >= end) return;
    const int place = static_cast<int>(token) - begin, pack = place / NUMBERS;
    atomicOr(sets + pack % TOP_K_THREADS, 1u << (pack / TOP_K_THREADS * NUMBERS + place % NUMBERS));
  }
  // Loads this thread's logits, -inf for tokens that do not exist. Returns the set of the tokens that exist.
  __device__ unsigned load(const Float* logits, float (&values)[TOP_K_THREAD_TOKENS]) const {
    const int first = token(static_cast<int>(threadIdx.x), 0);
    unsigned exist = 0;
#pragma unroll
    for (int i = 0; i < TOP_K_THREAD_TOKENS; i += NUMBERS) {
      const int at = first + i * TOP_K_THREADS;
      Pack<Float> pack;
      if (at >= 0 && at + NUMBERS <= end) {
        pack = load_16(logits + first + i * TOP_K_THREADS);
        exist |= ((1u << NUMBERS) - 1) << i;
      } else {
#pragma unroll
        for (int j = 0; j < NUMBERS; ++j) {
          const bool exists = at + j >= 0 && at + j < end;
          pack.values[j] = exists ? logits[at + j] : from_float<Float>(-infinity());
          exist |= static_cast<unsigned>(exists) << (i + j);
        }
      }
#pragma unroll
      for (int j = 0; j < NUMBERS; ++j) values[i + j] = to_float(pack.values[j]);
    }
    return exist;
  }
};

// Marks the penalised and forbidden tokens of the slice. Returns true if the row's length, history and bans are valid.
template <class Float>
__device__ bool mark_processed(const BeamTopKArguments<Float>& a, const Settings& settings, long long row,
                               const Slice<Float>& slice, unsigned* penalised, unsigned* forbidden) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const long long* history = a.history + row * a.T;
  const int length = a.lengths[static_cast<unsigned>(row) / static_cast<unsigned>(a.M)];
  bool valid = length >= 1 && length <= a.T && settings.valid();
  for (int t = thread; valid && t < length; t += threads) {
    const long long token = history[t];
    valid = token >= 0 && token < a.vocabulary;
    if (settings.repetition_penalty != 1.0f) slice.mark(penalised, token);
    if (token >= slice.begin && token < slice.end && repeats_newest(history, length, settings.ngram_size, t))
      slice.mark(forbidden, token);
  }
  for (int i = thread; i < a.P; i += threads) {
    const long long token = a.banned[row * a.P + i];
    if (token < -1 || token >= a.vocabulary) valid = false;
    if (token >= 0) slice.mark(forbidden, token);
  }
  return valid;
}

// The row's node in the trie; 0: any token may follow.
template <class Float>
__device__ __forceinline__ int node_of(const BeamTopKArguments<Float>& a, long long row) {
  return a.trie_nodes ? a.trie_nodes[row] : 0;
}

// Forbids all tokens of the slice but a node's children. Returns true if the children are ascending tokens of the
// vocabulary. Called by a whole block, with `forbidden` all zero; ends with a barrier.
template <class Float>
__device__ bool forbid_all_but_children(const BeamTopKArguments<Float>& a, int node, const Slice<Float>& slice,
                                        unsigned* forbidden) {
  const int thread = static_cast<int>(threadIdx.x);
  bool valid = node > 0 && node - 1 <= a.Y;
  const int begin = valid ? a.trie_offsets[node] : 0, end = valid ? a.trie_offsets[node + 1] : 0;
  valid = valid && begin >= 0 && begin <= end && end <= a.Y;
  for (int edge = begin + thread; valid && edge < end; edge += static_cast<int>(blockDim.x)) {
    const int token = a.trie_tokens[edge], before = edge == begin ? -1 : a.trie_tokens[edge - 1];
    valid = token > before && token < a.vocabulary;
    slice.mark(forbidden, token);
  }
  __syncthreads();
  forbidden[thread] = ~forbidden[thread];
  __syncthreads();
  return valid;
}

// Memory of a block that selects tokens.
struct Selection {
  float* scratch;    // [32]
  unsigned* floors;  // [warps]
  int* count;
  Key* keys;  // [capacity]
  int capacity;
};

// A key that C to `most` of the block's tokens in `taken` reach, found by bisection; 0 if `taken` has fewer than C.
template <class KeyOf>
__device__ Key find_bound(int C, int most, unsigned taken, KeyOf key_of, float* scratch) {
  Key low = 0, high = ~Key{0};  // at least C keys reach low, fewer than C high
  while (high - low > 1) {
    const Key middle = low + (high - low) / 2;
    int reach = 0;
#pragma unroll 1
    for (unsigned rest = taken; rest != 0; rest &= rest - 1)
      reach += key_of(static_cast<int>(threadIdx.x), __ffs(static_cast<int>(rest)) - 1) >= middle;
    reach = static_cast<int>(block_sum(static_cast<float>(reach), scratch));
    (reach >= C ? low : high) = middle;
    if (reach >= C && reach <= most) break;
  }
  return low;
}

// Collects the keys of the block's tokens in `taken` that reach `bound`, and counts them. `best` is this thread's best
// key, or a key above it. A warp goes through the tokens of one thread at a time.
template <class KeyOf>
__device__ __forceinline__ void collect_from(Key bound, Key best, unsigned taken, KeyOf key_of,
                                             const Selection& memory) {
  static_assert(TOP_K_THREAD_TOKENS == WARP);
  const int lane = static_cast<int>(threadIdx.x) % WARP, first = static_cast<int>(threadIdx.x) - lane;
#pragma unroll 1
  for (unsigned threads = __ballot_sync(WHOLE_WARP, taken && best >= bound); threads != 0; threads &= threads - 1) {
    const int owner = __ffs(static_cast<int>(threads)) - 1;
    if (!(__shfl_sync(WHOLE_WARP, taken, owner) >> lane & 1)) continue;
    const Key key = key_of(first + owner, lane);
    if (key < bound) continue;
    const int at = atomicAdd(memory.count, 1);
    if (at < memory.capacity) memory.keys[at] = key;
  }
}

// Writes the keys of the best `C` of the block's tokens in `taken`, best first, then zeros. `order` is that of this
// thread's best token, or 0 if it has no token. Called by a whole block.
template <class KeyOf>
__device__ __forceinline__ void select_tokens(unsigned order, unsigned taken, KeyOf key_of, int C,
                                              const Selection& memory, Key* candidates) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) *memory.count = 0;
  const unsigned floor = reached_bound(C, order, memory.floors);
  collect_from(static_cast<Key>(floor) << 32, static_cast<Key>(order) << 32 | 0xffffffffu, taken, key_of, memory);
  __syncthreads();
  if (*memory.count > memory.capacity) {  // many keys are equal, or few threads have the best ones
    const Key bound = find_bound(C, memory.capacity, taken, key_of, memory.scratch);
    if (thread == 0) *memory.count = 0;
    __syncthreads();
    collect_from(bound, ~Key{0}, taken, key_of, memory);
    __syncthreads();
  }
  const int count = *memory.count;
#pragma unroll 1
  for (int i = count + thread; i < C; i += TOP_K_THREADS) candidates[i] = 0;
#pragma unroll 1
  for (int i = thread; i < count; i += TOP_K_THREADS) {
    const int rank = rank_among(memory.keys[i], memory.keys, count);
    if (rank < C) candidates[rank] = memory.keys[i];
  }
  __syncthreads();  // before the memory is used again
}

// Grid: one block for each slice of each row. It writes the slice's share of the log-softmax to the workspace, and the
// keys of the best C tokens by logit, with -inf for forbidden tokens. Penalised tokens have a list of their own, since
// their scores depend on the log-softmax of the whole row. The penalty changes neither their order nor -inf.
template <class Float>
__global__ void __launch_bounds__(TOP_K_THREADS, 3) beam_top_k_slices(BeamTopKArguments<Float> a, BeamTopKWorkspace w) {
  constexpr int WARPS = TOP_K_THREADS / WARP;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP;
  unsigned* penalised = shared_memory<unsigned>();
  unsigned* forbidden = penalised + TOP_K_THREADS;
  float* numbers = shared_memory<float>(TOP_K_THREADS * 8);
  float *maxima = numbers, *sums = maxima + WARPS;
  const Selection memory = {numbers, reinterpret_cast<unsigned*>(numbers + 32), reinterpret_cast<int*>(numbers + 48),
                            shared_memory<Key>(TOP_K_THREADS * 8 + 256), w.capacity};

  const unsigned slices = static_cast<unsigned>(w.slices);
  const long long row = blockIdx.x / slices;
  const Float* logits = a.logits + row * a.vocabulary;
  Slice<Float> slice;
  slice.begin = static_cast<int>(blockIdx.x % slices) * w.tokens -
                (Pack<Float>::size - unaligned_numbers(logits)) % Pack<Float>::size;
  slice.end = min(slice.begin + w.tokens, a.vocabulary);
  float values[TOP_K_THREAD_TOKENS];
  unsigned exist = slice.load(logits, values);

  // The logits are loaded meanwhile.
  penalised[thread] = forbidden[thread] = 0;
  __syncthreads();
  const Settings settings(a);
  const int node = node_of(a, row);
  bool valid = node == 0 || forbid_all_but_children(a, node, slice, forbidden);
  valid = mark_processed(a, settings, row, slice, penalised, forbidden) && valid;

  // Sums of exponentials, relative to the maximum of each warp.
  float best = -infinity(), sum = 0.0f;
#pragma unroll
  for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) best = fmaxf(best, values[i]);
  const float top = from_ordered(warp_max(ordered(best))), base_power = top == -infinity() ? 0.0f : top * LOG2_E;
#pragma unroll
  for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) sum += quick_exp_below(values[i], base_power);
  sum = warp_sum(sum);
  if (thread % WARP == 0) maxima[warp] = top, sums[warp] = sum;

  valid = __syncthreads_and(valid &&
                            !isnan(sum));  // the sum is NaN if a logit is NaN or inf; the barrier also ends the marking
  if (thread == 0) {
    float row_max = -infinity(), row_sum = 0.0f;
    for (int i = 0; i < WARPS; ++i) row_max = fmaxf(row_max, maxima[i]);
    for (int i = 0; i < WARPS; ++i)
      if (maxima[i] != -infinity()) row_sum += sums[i] / quick_exp_below(row_max, maxima[i] * LOG2_E);
    w.slice_max[blockIdx.x] = valid ? row_max : not_a_number();
    w.sums[blockIdx.x] = row_sum;
  }
  if (!valid) return;

  const unsigned forbids = forbidden[thread];
  if (node != 0) {  // tokens that are not children are -inf; the lowest C of them are enough
    unsigned lowest = 0;
#pragma unroll 1
    for (int i = 0; slice.begin < a.C && i < TOP_K_THREAD_TOKENS; ++i)
      lowest |= static_cast<unsigned>(slice.token(thread, i) < a.C) << i;
    exist &= ~forbids | lowest;
  }
  const auto key_of = [&](int owner, int i) {
    const int token = slice.token(owner, i);
    return make_key(forbidden[owner] >> i & 1 ? -infinity() : to_float(logits[token]), token);
  };
#pragma unroll 1
  for (int list = 0; list < w.lists; ++list) {
    Key* candidates = w.candidates + (static_cast<long long>(blockIdx.x) * w.lists + list) * w.listed;
    if (list == 1 && settings.repetition_penalty == 1.0f) {
#pragma unroll 1
      for (int i = thread; i < w.listed; i += TOP_K_THREADS) candidates[i] = 0;
      return;
    }
    const unsigned taken = list == 0 ? exist & ~penalised[thread] : penalised[thread];
    if (taken != exist || forbids) {
      best = -infinity();
#pragma unroll
      for (int i = 0; i < TOP_K_THREAD_TOKENS; ++i) best = (taken & ~forbids) >> i & 1 ? fmaxf(best, values[i]) : best;
    }
    select_tokens(taken ? ordered(best) : 0, taken, key_of, w.listed, memory, candidates);
  }
}

// Grid: one block for each sample. It selects the best C of the slices' candidates by processed score plus beam score.
template <class Float>
__global__ void __launch_bounds__(TOP_K_THREADS) beam_top_k_samples(BeamTopKArguments<Float> a, BeamTopKWorkspace w) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const long long sample = blockIdx.x, first_row = sample * a.M;
  unsigned* floors = shared_memory<unsigned>();
  int* chosen_count = shared_memory<int>(TOP_K_THREADS / WARP * 4);
  float* shifts = shared_memory<float>(TOP_K_THREADS / WARP * 4 + 16);
  float* log_sums = shifts + a.M;

  const Settings settings(a);
  // The log-softmax of row m is (logit - shifts[m]) - log_sums[m].
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

  const int row_keys = w.slices * w.lists * w.listed, keys = a.M * row_keys;
  const Key* candidates = w.candidates + sample * keys;
  const auto key_of = [&](int i) {
    const Key candidate = candidates[i];
    if (candidate == 0) return BeamTopKKey{};
    const int m = i / row_keys;
    float score = (value_of(candidate) - shifts[m]) - log_sums[m];
    if (i / w.listed % w.lists == 1)
      score = score < 0.0f ? score * settings.repetition_penalty : score / settings.repetition_penalty;
    return BeamTopKKey{make_key(score + a.beam_scores[first_row + m], m), make_key(score, index_of(candidate))};
  };
  const auto order_of = [](const BeamTopKKey& key) { return static_cast<unsigned>(key.total_and_beam >> 32); };
  unsigned best = 0;
  for (int i = thread; i < keys; i += threads) best = max(best, order_of(key_of(i)));
  const unsigned floor = max(reached_bound(a.C, best, floors), 1u);  // every key's order is above 0
  BeamTopKKey* chosen = w.chosen + sample * keys;
  for (int i = thread; i < keys; i += threads) {
    const BeamTopKKey key = key_of(i);
    if (order_of(key) >= floor) chosen[atomicAdd(chosen_count, 1)] = key;
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
