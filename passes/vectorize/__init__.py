"""From a program per example to one over all examples."""
