"""Folding, algebra valid for floats, dead code."""
