"""Analyses asked by several passes: access maps, fusion clusters, cost."""
