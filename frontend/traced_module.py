"""A module that is compiled by tracing, and in everything else the module that it was made of."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class TracedModule(nn.Module):
    """Calls go to `traced`; parameters, buffers, attributes and the mode are the original's, to read and to assign."""

    def __init__(self, module: nn.Module, traced: Callable[..., object]) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        self.__dict__["_traced"] = traced

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the compiled program."""
        return self.__dict__["_traced"](*args, **kwargs)

    @property
    def training(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The original's mode."""
        return self._orig_mod.training  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]

    @training.setter
    def training(self, mode: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if "_modules" in self.__dict__:  # not yet while this is made: the original's stays
            setattr(self._orig_mod, "training", mode)  # noqa: B010

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        if "_modules" not in self.__dict__:  # a copy that is being made
            raise AttributeError(name)
        original = self._modules["_orig_mod"]
        return original if name == "_orig_mod" else getattr(original, name)  # pyright: ignore[reportReturnType]

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def _is_own(self, name: str) -> bool:
        return name in self.__dict__ or hasattr(type(self), name)
