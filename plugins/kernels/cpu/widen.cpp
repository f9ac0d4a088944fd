#include "kernels/cpu/widen.h"

#include <algorithm>
#include <cstring>

namespace tightbeam {
namespace {

uint32_t bits_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

float from_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

uint16_t to_bfloat16(float number) {
  const uint32_t bits = bits_of(number);
  if (number != number) return static_cast<uint16_t>(bits >> 16 | 0x40);  // a NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, rest = bits & 0x7FFF;
  if (rest >= 0x7C00) return float_of(sign | 0x7F800000 | (rest & 0x3FF) << 13);  // infinity and NaN
  // The shifted bits are 2^112 times too small, and the product corrects that, for subnormal numbers too.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

uint16_t to_float16(float number) {
  const uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);   // NaN
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and more round to infinity
  if (magnitude <
      0x38800000)  // below 2^-14: the lowest bits of the number + 1/2 are the number in units of 2^-24, rounded
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1) - (112u << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

constexpr size_t BLOCK = 1 << 16;

template <class Convert>
void each_block(size_t count, const Parallel& parallel, const Convert& convert) {
  parallel.for_each((count + BLOCK - 1) / BLOCK, [&](size_t block) {
    for (size_t i = block * BLOCK; i < std::min(count, (block + 1) * BLOCK); ++i) convert(i);
  });
}

std::vector<float> widened(const void* data, size_t count, Type narrow, const Parallel& parallel) {
  std::vector<float> numbers(count);
  const auto* bits = static_cast<const uint16_t*>(data);
  const auto widen = narrow == Type::float16 ? from_float16 : from_bfloat16;
  each_block(count, parallel, [&](size_t i) { numbers[i] = widen(bits[i]); });
  return numbers;
}

void narrow_to(void* data, const std::vector<float>& numbers, Type narrow, const Parallel& parallel) {
  auto* bits = static_cast<uint16_t*>(data);
  const auto round = narrow == Type::float16 ? to_float16 : to_bfloat16;
  each_block(numbers.size(), parallel, [&](size_t i) { bits[i] = round(numbers[i]); });
}

size_t count_of(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

}  // namespace

void run_widened(Call& call, Type narrow, const Parallel& parallel, void (*run)(const Call&, const Parallel&)) {
  std::vector<std::vector<float>> inputs(call.inputs.size()), outputs(call.outputs.size());
  const std::vector<void*> narrow_outputs = call.outputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    Tensor& input = call.inputs[i];
    if (call.op.inputs[i].type != Element::Float || !input.present) continue;
    inputs[i] = widened(input.data, count_of(input.shape), narrow, parallel);
    input.data = inputs[i].data();
    input.type = Type::float32;
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Output& output = call.op.outputs[i];
    if (call.outputs[i] == nullptr) continue;
    if (output.type != Element::Float) {
      if (output.starts_as_copy) {
        const Tensor& from = call.inputs[call.op.input(output.input)];
        if (from.data != call.outputs[i])
          std::memcpy(call.outputs[i], from.data, bytes_of(from.type) * count_of(from.shape));
      }
      continue;
    }
    const size_t count = count_of(call.op.output_shape(i, call.sizes));
    outputs[i] = output.starts_as_copy ? inputs[call.op.input(output.input)] : std::vector<float>(count);
    call.outputs[i] = outputs[i].data();
  }
  run(call, parallel);
  for (size_t i = 0; i < call.outputs.size(); ++i)
    if (!outputs[i].empty()) narrow_to(narrow_outputs[i], outputs[i], narrow, parallel);
}

}  // namespace tightbeam
