"""The operators, one folder each: schema, ONNX function, cases, kernels."""
