"""The ways in which a native program may read tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.dialects.native_facts import NativeFacts
from isthmus.runtime.call import NativeProgram
from isthmus.runtime.layout import native_facts

Native = Callable[..., NativeProgram]
SLOW = NativeFacts(native_facts().excluded_keys, None)
"""As if torch's layout could not be found."""

FACTS = pytest.mark.parametrize("facts", [native_facts(), SLOW], ids=["builtin", "pointers"])
