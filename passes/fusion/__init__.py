"""From primitives to fused kernels."""
