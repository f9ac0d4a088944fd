// The inner loops of EncoderAttention and PromptAttention, compiled once for each instruction set.
// `encoder_attention_kernels()` returns the best version for this machine.
#pragma once

namespace tightbeam {

constexpr long BIAS_OVERRUN = 64;  // floats that `attend` may read beyond the last bias

// The keys that a query sees. Unless `causal` is true: all.
struct Sight {
  bool causal = false;  // none behind the query. All positions count then
  int window = 0;       // how many of the newest keys; 0: all
  int first = 0;        // position of the first query and of the first row of the output
  float softcap = 0;    // a scaled score s becomes softcap x tanh(s / softcap) before its bias; 0: no cap
  bool by_key = false;  // the bias of position j is bias[j]
};

// One head of one sample: its queries, keys and values, and the positions that count.
struct AttentionHead {
  const float* query;  // of position `sight.first`
  const float* key;    // of position 0
  const float* value;
  long stride;           // of queries and keys, from a position to the next one
  long value_stride;     // of values
  long output_stride;    // of the output
  int K;                 // width of a query and of a key
  int V;                 // width of a value
  const int* positions;  // the positions that count, ascending
  int count;
  float scale;
  const float* bias;  // bias[j - i] is added to the score of position j for the query of position i; or null
  Sight sight;
};

struct EncoderAttentionKernels {
  const char* name;

  // Sizes, in floats, of the packed keys and values of a head, and of the workspace of `attend`.
  long (*keys_size)(int count, int K);
  long (*values_size)(int count, int V);
  long (*workspace_size)(int K, int V);

  // Brings the keys and values of the positions that count into the order in which `attend` reads them.
  void (*pack)(const AttentionHead& head, float* keys, float* values);

  // Attention of the queries of positions[begin, end) over all positions that count. `output` is that of position
  // `sight.first`.
  void (*attend)(const AttentionHead& head, const float* keys, const float* values, int begin, int end,
                 float* workspace, float* output);
};

const EncoderAttentionKernels& encoder_attention_kernels();

}  // namespace tightbeam
