"""Networks and questions of others: ONNX, .nnet and VNN-LIB, answered by certificates."""
