"""Bundle to TensorRT engine, built in a process of its own."""
