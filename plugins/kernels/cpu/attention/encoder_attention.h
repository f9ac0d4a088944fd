// The inner loops of EncoderAttention, compiled once for each instruction set; `encoder_attention_kernels()` is the
// best one of this machine.
#pragma once

namespace tightbeam {

// One head of one sample: rows of queries, keys and values at all its positions, and which of them count.
struct EncoderHead {
  const float* query;  // of position 0
  const float* key;
  const float* value;
  long stride;           // of queries and keys, from a position to the next one
  long value_stride;     // of values, and of the output
  int K;                 // numbers of a query and of a key
  int V;                 // of a value
  const int* positions;  // that count, ascending
  int count;
  float scale;
  const float* bias;  // bias[j - i]: added to the score of position j for the query of position i; or null
};

struct EncoderAttentionKernels {
  const char* name;

  // Numbers that `pack` writes for the keys and for the values of a head, and that `attend` works in.
  long (*keys_size)(int count, int K);
  long (*values_size)(int count, int V);
  long (*workspace_size)(int K, int V);

  // Brings the keys and values that count into the order in which `attend` reads them.
  void (*pack)(const EncoderHead& head, float* keys, float* values);

  // Attention of the queries of positions[begin, end) over all that count; `output`: of position 0.
  void (*attend)(const EncoderHead& head, const float* keys, const float* values, int begin, int end, float* workspace,
                 float* output);
};

const EncoderAttentionKernels& encoder_attention_kernels();

}  // namespace tightbeam
