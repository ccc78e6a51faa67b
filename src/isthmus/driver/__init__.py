"""The driver joins the parts: frontend, passes, code generation, runtime."""

from isthmus.driver.api import compile, dynamo_backend, reset

__all__ = ["compile", "dynamo_backend", "reset"]
