"""The parts of a simulated CUDA card: a device that dispatches as CUDA does, and PyTorch's caching allocator."""
