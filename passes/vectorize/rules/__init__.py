"""Batching rules, by subject."""
