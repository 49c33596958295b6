"""The Open Inference Protocol, version 2, which clients of KServe and Triton speak."""
