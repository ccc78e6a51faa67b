"""CPU loops, reductions and the native call in LLVM IR text."""
