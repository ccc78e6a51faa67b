"""Composite operators become primitives."""
