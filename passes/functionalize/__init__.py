"""Mutation and aliasing become values."""
