"""The vocabulary of the compiler: the aten, prim, autodiff and kernel dialects."""
