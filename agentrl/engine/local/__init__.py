"""The embedded engine: continuous batching in this process, over transformers' model code."""
