"""The hot loop's second form: the same functions, compiled by numba over NumPy arrays.

The modules of the hot loop are plain Python. `compiled_run_events` builds one namespace of all their functions, each
compiled and calling its compiled neighbours. Without fast-math, numba keeps the order of float operations and fuses no
multiply-adds, so that both forms give the same bits. The machine code is cached on disk, in a folder named after the
sources and versions it was made from, because numba's own check looks at one source file only.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from splitplan.planner.simulate import (
    changes,
    delivery,
    engine,
    flows,
    intake,
    layout,
    lifecycle,
    loop,
    prefix,
    queues,
    reads,
    routing,
    running,
    runs,
    schedule,
    steptime,
    transfer,
)

HOT_MODULES: tuple[types.ModuleType, ...] = (
    layout,
    queues,
    steptime,
    running,
    prefix,
    runs,
    lifecycle,
    flows,
    transfer,
    reads,
    routing,
    intake,
    schedule,
    delivery,
    engine,
    changes,
    loop,
)


def has_numba() -> bool:
    """Whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def is_loaded() -> bool:
    """Whether this process has the compiled form at hand."""
    return compiled_run_events.cache_info().currsize > 0


def is_cached() -> bool:
    """Whether the disk cache holds machine code of these sources, so that no compiler has to run."""
    folder = _cache_folder()
    return folder is not None and any(folder.rglob("*.nbc"))


@functools.cache
def compiled_run_events() -> Callable[[layout.World, float], None]:
    """`loop.run_events`, compiled (from the disk cache where possible)."""
    import numba

    namespace: dict[str, Any] = {}
    for module in HOT_MODULES:
        namespace.update((name, value) for name, value in vars(module).items() if not name.startswith("__"))
    own = [name for name, value in namespace.items() if _is_hot(value)]
    cache_folder = _cache_folder()
    for name in own:
        function = namespace[name]
        copy = types.FunctionType(function.__code__, namespace, name, function.__defaults__)
        copy.__module__ = function.__module__
        namespace[name] = (
            numba.njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(copy)
            if name != "run_events"
            else _cached(copy, cache_folder)
        )
    return namespace["run_events"]  # type: ignore[no-any-return]


def _cached(function: types.FunctionType, folder: Path | None) -> Any:
    import numba

    if folder is None:
        return numba.njit(_nrt=False)(function)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        return numba.njit(cache=True, _nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = before


def _is_hot(value: object) -> bool:
    names = {module.__name__ for module in HOT_MODULES}
    return isinstance(value, types.FunctionType) and value.__module__ in names


@functools.cache
def _cache_folder() -> Path | None:
    """A writable folder for this version of the sources; None when there is none, then every process compiles."""
    digest = hashlib.sha256(f"{sys.version}{importlib.metadata.version('numba')}".encode())
    for path in (__file__, *(str(module.__file__) for module in HOT_MODULES)):
        digest.update(Path(path).read_bytes())
    base = os.environ.get("XDG_CACHE_HOME")
    places = [Path(base)] if base else []
    places += [Path.home() / ".cache", Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"]
    for place in places:
        folder = place / "splitplan" / f"simulator-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid != os.getuid():
                continue  # what is loaded from here is code: nobody else may have put it there
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError:
            continue
        return folder
    return None
