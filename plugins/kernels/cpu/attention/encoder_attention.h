// The inner loops of EncoderAttention, compiled once for each instruction set. `encoder_attention_kernels()` returns
// the best version for this machine.
#pragma once

namespace tightbeam {

// One head of one sample: its queries, keys and values at all positions, and the positions that count.
struct EncoderHead {
  const float* query;  // of position 0
  const float* key;
  const float* value;
  long stride;           // of queries and keys, from a position to the next one
  long value_stride;     // of values, and of the output
  int K;                 // width of a query and of a key
  int V;                 // width of a value
  const int* positions;  // the positions that count, ascending
  int count;
  float scale;
  const float* bias;  // bias[j - i] is added to the score of position j for the query of position i; or null
};

struct EncoderAttentionKernels {
  const char* name;

  // Sizes, in floats, of the packed keys and values of a head, and of the workspace of `attend`.
  long (*keys_size)(int count, int K);
  long (*values_size)(int count, int V);
  long (*workspace_size)(int K, int V);

  // Brings the keys and values of the positions that count into the order in which `attend` reads them.
  void (*pack)(const EncoderHead& head, float* keys, float* values);

  // Attention of the queries of positions[begin, end) over all positions that count. `output` is that of position 0.
  void (*attend)(const EncoderHead& head, const float* keys, const float* values, int begin, int end, float* workspace,
                 float* output);
};

const EncoderAttentionKernels& encoder_attention_kernels();

}  // namespace tightbeam
