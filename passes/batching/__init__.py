"""Batched forms of primitives."""
