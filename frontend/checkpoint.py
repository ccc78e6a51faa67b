"""Selective checkpoint policies: torch asks them per kernel-level op, we note the answer on the recorded call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext

from isthmus.diagnostics import UnsupportedError

if TYPE_CHECKING:
    from isthmus.frontend.recorder import Recorder

Policy = Callable[..., CheckpointPolicy | bool]

_STRENGTH = ("must_save", "prefer_save", "must_recompute", "prefer_recompute")
"""Of several kernels inside one call the first of these decides."""


def policy_of(body: fx.GraphModule) -> Policy | None:
    """Give the policy that the user passed as context_fn; None for a plain checkpoint."""
    context_fn = body.meta.get("_checkpoint_context_fn")
    return None if context_fn is None else policy_of_contexts(context_fn)


def policy_of_contexts(context_fn: Callable[[], Sequence[object]]) -> Policy:
    """Give the policy behind a context_fn; UnsupportedError where create_selective_checkpoint_contexts is not."""
    policy = getattr(context_fn()[0], "policy_fn", None)
    if policy is None:
        raise UnsupportedError(
            "a context_fn that create_selective_checkpoint_contexts did not make has no compiled form",
            op="torch.utils.checkpoint",
        )
    return cast(Policy, policy)


@contextmanager
def tagging(recorder: Recorder, policy: Policy | None, default: str | None = None) -> Generator[None]:
    """Tag the calls recorded meanwhile with what the policy says, or all of them with `default`."""
    before = recorder.policy, recorder.tag
    recorder.policy, recorder.tag = policy, default
    try:
        yield
    finally:
        recorder.policy, recorder.tag = before


def _context_of(result: object) -> SelectiveCheckpointContext:
    """What a policy is told beside the call; older torch says nothing of the result."""
    more = {"op_output": result} if _TELLS_RESULT else {}
    return SelectiveCheckpointContext(is_recompute=False, **more)


_TELLS_RESULT = "op_output" in inspect.signature(SelectiveCheckpointContext).parameters


class AskPolicy(TorchDispatchMode):
    """Asks the policy for each kernel of one call."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.answers: set[str] = set()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[object, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in SAC_IGNORED_OPS:
            answer = self.policy(_context_of(result), func, *args, **kwargs)
            if isinstance(answer, bool):
                answer = CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
            self.answers.add(answer.name.lower())
        return result

    @property
    def tag(self) -> str | None:
        """The answer for the call as a whole."""
        return next((t for t in _STRENGTH if t in self.answers), None)
