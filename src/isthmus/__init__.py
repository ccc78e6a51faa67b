"""Isthmus: an ahead-of-time compiler for PyTorch programs, training steps above all."""
