"""Decomposition rules, by subject."""
