// Writes the output's token ids for each line of source token ids: generate BUNDLE [LIBRARY] < ids.txt
// LIBRARY is Tightbeam's CPU library, whose kernels make the same graph faster.
#include <onnxruntime_cxx_api.h>

#include <deque>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 2) return std::cerr << "usage: generate BUNDLE [LIBRARY] < ids.txt\n", 2;
  Ort::Env env;
  Ort::SessionOptions options;
  if (argc > 2) options.RegisterCustomOpsLibrary(argv[2]);
  Ort::Session session(env, (std::string(argv[1]) + "/generate.onnx").c_str(), options);
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

  std::vector<const char*> names = {"input_ids", "attention_mask"};
  std::vector<Ort::Value> inputs;
  inputs.emplace_back(nullptr);
  inputs.emplace_back(nullptr);
  std::deque<int64_t> integers;  // a deque, since tensors keep pointers to its elements
  std::deque<float> floats;
  const auto integer = [&](const char* name, int64_t value) {
    names.push_back(name);
    inputs.push_back(Ort::Value::CreateTensor(memory, &integers.emplace_back(value), 1, nullptr, 0));
  };
  const auto number = [&](const char* name, float value) {
    names.push_back(name);
    inputs.push_back(Ort::Value::CreateTensor(memory, &floats.emplace_back(value), 1, nullptr, 0));
  };
  integer("num_beams", 4), integer("max_new_tokens", 47), integer("min_new_tokens", 0);
  number("length_penalty", 1), integer("no_repeat_ngram_size", 3), number("repetition_penalty", 1);
  integer("early_stopping", 1), integer("num_return_sequences", 1);
  number("temperature", 0), integer("top_k", 50), number("top_p", 1), number("min_p", 0);
  integer("seed", 0);

  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::vector<int64_t> ids{std::istream_iterator<int64_t>(words), {}}, mask(ids.size(), 1);
    const int64_t shape[] = {1, static_cast<int64_t>(ids.size())};
    inputs[0] = Ort::Value::CreateTensor(memory, ids.data(), ids.size(), shape, 2);
    inputs[1] = Ort::Value::CreateTensor(memory, mask.data(), mask.size(), shape, 2);
    const char* outputs[] = {"sequences", "lengths"};
    const auto found = session.Run(Ort::RunOptions(), names.data(), inputs.data(), inputs.size(), outputs, 2);
    const int64_t length = found[1].GetTensorData<int64_t>()[0];
    for (int64_t i = 0; i < length; ++i) std::cout << (i ? " " : "") << found[0].GetTensorData<int64_t>()[i];
    std::cout << std::endl;
  }
}
