"""What launches found wrong: a word each in the device's memory, looked at on the host without waiting for the rest.

After the last launch that can fail the words are copied to the host, and an event is recorded. Whoever asks waits for
that event alone, so that what comes after it (a backward, an update) hides the host's work on the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from isthmus.dialects.program import ERROR_SPACING, KernelCall
from isthmus.runtime.call import kernel_error
from isthmus.runtime.torch_private import is_capturing


class ErrorWords:
    """The words of one program on one device, for one call at a time: whoever runs it holds `lock`."""

    def __init__(self, steps: Sequence[KernelCall], device: torch.device) -> None:
        """`steps`: the launches that can fail, in the order of their words; one more is for those that recheck."""
        self.lock = threading.Lock()
        self._steps = tuple(steps)
        self._device = device
        self._words: Tensor | None = None
        self._seen: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def address(self) -> int:
        """Where the words are in the device's memory: zero but after a failure."""
        return 0 if not self._steps else self._made()[0].data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes of all words."""
        return ERROR_SPACING * len(self._steps)

    @property
    def host_address(self) -> int:
        """Where the host looks at them."""
        return 0 if not self._steps else self._made()[1].data_ptr()

    @property
    def event(self) -> int:
        """The handle of the event that tells that the host's copy is there; 0 where nothing has to be waited for."""
        return 0 if not self._steps or self._event is None else int(self._event.cuda_event)

    def _made(self) -> tuple[Tensor, Tensor]:
        if self._words is None or self._seen is None:
            count = ERROR_SPACING // 8 * (len(self._steps) + 1)
            self._words = torch.zeros(count, dtype=torch.int64, device=self._device)
            if self._device.type == "cuda":
                self._seen = torch.zeros(count, dtype=torch.int64, pin_memory=True)
                self._event = torch.cuda.Event()
                self._event.record(torch.cuda.current_stream(self._device))  # it has no handle before
            else:
                self._seen = self._words
        return self._words, self._seen

    def copy(self) -> None:
        """Copy the words to the host, in the order of the current stream."""
        words, seen = self._made()
        if seen is not words:
            seen.copy_(words, non_blocking=True)

    def mark(self) -> None:
        """Note that the copy is what has to be waited for."""
        self._made()
        if self._event is not None and not is_capturing(self._device):
            self._event.record(torch.cuda.current_stream(self._device))

    def check(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        """Wait for the copy and raise what the first failed launch found, as eager does.

        While a graph is captured nothing is found: a later call that is not captured raises it.
        """
        if not self._steps or is_capturing(self._device):
            return
        words, seen = self._made()
        if self._event is not None:
            self._event.synchronize()
        found = seen.tolist()[:: ERROR_SPACING // 8][: len(self._steps)]
        if not any(found):
            return
        words.zero_()
        step, word = next((s, w) for s, w in zip(self._steps, found, strict=True) if w)
        error = kernel_error(step, word, sizes())
        if step.location is not None:
            error.add_note(f"from {step.location}")
        raise error

    def check_now(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        """Wait for the launches so far and raise what they found."""
        if self._steps and not is_capturing(self._device):
            self.copy()
            self.mark()
            self.check(sizes)
