"""From the kernel dialect to LLVM IR text."""
