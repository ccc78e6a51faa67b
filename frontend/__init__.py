"""From Python functions and modules to the aten dialect."""
