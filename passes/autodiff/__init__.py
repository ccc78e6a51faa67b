"""Differentiation of primitive programs."""
