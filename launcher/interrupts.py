"""Ctrl-C at the right moment: never between starting a process and writing down that it was started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_depth = 0
_pending = False


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, except inside `deferred`. In other threads than the main: nothing."""
    global _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _pending = False
    before = {number: signal.signal(number, _handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred(*, forget: bool = False) -> Iterator[None]:
    """An interrupt waits until the end of the block, or is forgotten where the block is the cleaning up itself."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if forget:
            _pending = False
    if _pending and _depth == 0:
        _pending = False
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    global _pending
    if _depth:
        _pending = True
    else:
        raise KeyboardInterrupt
