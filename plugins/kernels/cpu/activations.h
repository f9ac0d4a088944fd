// Activations of vectors, for the files that are compiled once for each instruction set. All of it has internal
// linkage, like vectors.h.
#pragma once

#include "kernels/cpu/vectors.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace tightbeam {
namespace {

// |x| times the normal distribution of -|x|, to 3e-8, by polynomials in |x| between multiples of 0.4: GELU_POWERS[i][j]
// belongs to (2.5 |x| - j)^i where j is the nearest integer to 2.5 |x|. From 5.8 on it is 0.
constexpr float GELU_STEPS = 2.5f;
constexpr float GELU_LAST = 15.0f;
constexpr float GELU_POWERS[6][16] = {
    {0.0f, 0.137831286f, 0.169484332f, 0.138083622f, 0.087678872f, 0.0455002636f, 0.0196740814f, 0.00715436228f,
     0.00219884072f, 0.000572791148f, 0.000126685263f, 2.3815348e-05f, 3.80802953e-06f, 5.18164427e-07f,
     6.00214349e-08f, 0.0f},
    {0.2f, 0.0789080858f, -0.00795913022f, -0.0471814387f, -0.0490696207f, -0.0340927243f, -0.0182197355f,
     -0.00784325227f, -0.00277677691f, -0.000817495165f, -0.000201459916f, -4.17338015e-05f, -7.28839586e-06f,
     -1.07524806e-06f, -1.34206147e-07f, 0.0f},
    {-0.0638302267f, -0.0542086139f, -0.0315189175f, -0.00870050862f, 0.00496871118f, 0.00863861665f, 0.00673655886f,
     0.00369828823f, 0.00157163909f, 0.000536499836f, 0.000149868589f, 3.46289562e-05f, 6.66374945e-06f, 1.0728977e-06f,
     1.45007192e-07f, 0.0f},
    {-6.00857402e-06f, 0.00603347272f, 0.00830581039f, 0.00636310037f, 0.00272613741f, 9.9569661e-08f, -0.00100900407f,
     -0.000907841953f, -0.000507815508f, -0.000210539292f, -6.85193663e-05f, -1.79787567e-05f, -3.86061947e-06f,
     -6.84781014e-07f, -1.00963661e-07f, 0.0f},
    {0.00172972423f, 0.00113336626f, -1.66420105e-05f, -0.000819450186f, -0.000865774928f, -0.000461389165f,
     -7.8102159e-05f, 8.73557219e-05f, 9.40313475e-05f, 5.31954975e-05f, 2.13544517e-05f, 6.59162606e-06f,
     1.62005415e-06f, 3.23055701e-07f, 5.28752402e-08f, 0.0f},
    {-5.54838516e-05f, -0.000202335534f, -0.000223038369f, -8.4277417e-05f, 5.34377905e-05f, 9.1347516e-05f,
     5.58433967e-05f, 1.30900989e-05f, -6.46150238e-06f, -8.11167683e-06f, -4.49046547e-06f, -1.70169346e-06f,
     -4.8765736e-07f, -1.10121746e-07f, -2.00269525e-08f, 0.0f},
};

// table[index of the lane], of the index's last four bits.
inline Vector look_up(const float (&table)[16], Integers index) {
#if TIGHTBEAM_LANES == 16
  return (Vector)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)index, (__m512)load(table));
#elif TIGHTBEAM_LANES == 8
  return (Vector)_mm256_i32gather_ps(table, (__m256i)(index & 15), sizeof(float));
#else
  Vector found;
  for (int lane = 0; lane < LANES; ++lane) found[lane] = table[index[lane] & 15];
  return found;
#endif
}

inline Vector gelu(Vector x) {
  const Vector zero = {}, last = broadcast(GELU_LAST), magic = broadcast(MAGIC);
  const Vector steps = (Vector)((Bits)x & 0x7FFFFFFFu) * GELU_STEPS;
  const Vector bounded = steps < last ? steps : last;
  const Vector shifted = bounded + magic;  // whose low bits are the nearest integer
  const Vector rest = bounded - (shifted - magic);
  Vector tail = look_up(GELU_POWERS[5], (Integers)shifted);
  TIGHTBEAM_UNROLL
  for (int power = 4; power >= 0; --power) tail = tail * rest + look_up(GELU_POWERS[power], (Integers)shifted);
  return (x < zero ? zero : x) - tail;
}

// x / (1 + e^-s)
inline Vector gated(Vector x, Vector s) {
  const Vector zero = {}, one = broadcast(1.0f), e = exponential(s < zero ? s : -s);
  return x * (s < zero ? e : one) / (one + e);
}

template <int ACTIVATION>
inline Vector activated(Vector numbers) {
  if constexpr (ACTIVATION == 1) return numbers < Vector{} ? Vector{} : numbers;
  if constexpr (ACTIVATION == 2) return gelu(numbers);
  if constexpr (ACTIVATION == 3) return gated(numbers, numbers);
  if constexpr (ACTIVATION == 4)
    return gated(numbers, 1.59576912f * (numbers + 0.044715f * numbers * numbers * numbers));
  return numbers;
}

}  // namespace
}  // namespace tightbeam
