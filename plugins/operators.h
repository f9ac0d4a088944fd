// Every operator there is: its folder's name. Each has `add_<folder>` in plugins/<folder>/onnxruntime.cpp, and
// `add_<folder>_cuda` in onnxruntime_cuda.cpp beside it, which only the CUDA library is linked with.
#pragma once

#include "common/onnxruntime_adapter.h"

#define TIGHTBEAM_OPERATORS(EACH) \
  EACH(ngram_block)           \
  EACH(beam_attention)        \
  EACH(beam_latent_attention) \
  EACH(source_attention)      \
  EACH(latent_attention)      \
  EACH(beam_top_k)

namespace tightbeam {

#define TIGHTBEAM_DECLARE(op)            \
  void add_##op(Operators& operators); \
  void add_##op##_cuda(Operators& operators);
TIGHTBEAM_OPERATORS(TIGHTBEAM_DECLARE)
#undef TIGHTBEAM_DECLARE

}  // namespace tightbeam
