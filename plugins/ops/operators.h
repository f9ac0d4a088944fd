// Every operator there is: its folder's name. What each of them has for a runtime is declared where it is gathered:
// onnxruntime/register.cpp (ONNX Runtime), tensorrt/library.cpp.
#pragma once

#define TIGHTBEAM_OPERATORS(EACH) \
  EACH(ngram_block)           \
  EACH(beam_attention)        \
  EACH(beam_latent_attention) \
  EACH(source_attention)      \
  EACH(latent_attention)      \
  EACH(beam_top_k)
