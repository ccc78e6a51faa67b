"""One module per subject; importing this fills the tables."""

from isthmus.passes.decompose.rules import (
    activations,
    arithmetic,
    functions,
    logic,
    reductions,
    views,
    writes,
)

__all__ = ["activations", "arithmetic", "functions", "logic", "reductions", "views", "writes"]
