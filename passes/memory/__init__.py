"""Order of kernels and reuse of their buffers."""
