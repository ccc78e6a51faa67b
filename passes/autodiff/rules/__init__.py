"""Derivative rules, by subject."""
