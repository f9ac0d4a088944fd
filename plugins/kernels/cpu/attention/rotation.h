// The rotation of key heads by the angles of their positions (RoPE).
#pragma once

#include <cstddef>
#include <cstring>

namespace tightbeam {

struct Rotation {
  const float *cosines, *sines;  // [positions, numbers / 2]; null: no rotation
  int numbers;                   // the first numbers of a head, in two halves, are rotated

  explicit operator bool() const { return cosines != nullptr; }

  // Rotates a head of `width` numbers by the angles of a position; `from` and `to` may be the same.
  void rotate(const float* from, float* to, int width, size_t position) const {
    const int half = numbers / 2;
    const float* cosine = cosines + position * half;
    const float* sine = sines + position * half;
    for (int k = 0; k < half; ++k) {
      const float one = from[k], two = from[half + k];
      to[k] = one * cosine[k] - two * sine[k];
      to[half + k] = two * cosine[k] + one * sine[k];
    }
    if (to != from) std::memcpy(to + numbers, from + numbers, sizeof(float) * (width - numbers));
  }
};

}  // namespace tightbeam
