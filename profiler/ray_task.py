"""Measuring as a Ray task: `python -m splitplan.profiler.ray_task NODE GPUS`, a request on stdin, rows on stdout.

The task is pinned to its node by Ray's own `node:<address>` resource and takes all of its GPUs, so nothing else is
scheduled there while it measures. Rows stream back as they are finished.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from splitplan.catalogs.errors import Problem, ProfileError, SplitplanError


def run_task(ray: Any, node: str, num_gpus: int, request: str, write: Callable[[str], object]) -> None:
    """Runs one measuring task on a node of the cluster that RAY_ADDRESS (or "auto") names."""
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), logging_level="ERROR", log_to_driver=False)
    try:
        address = _address_of(ray, node)
        options = {"num_gpus": num_gpus, "resources": {f"node:{address}": 0.001}, "num_returns": "streaming"}
        task = ray.remote(_measure).options(**options)
        for reference in task.remote(request):
            write(ray.get(reference))
    finally:
        ray.shutdown()


def _address_of(ray: Any, node: str) -> str:
    known = {}
    for entry in ray.nodes():
        if entry["Alive"]:
            known[entry["NodeName"]] = known[entry["NodeManagerHostname"]] = entry["NodeManagerAddress"]
            known[entry["NodeManagerAddress"]] = entry["NodeManagerAddress"]
    if node not in known:
        raise ProfileError(Problem(f"Ray knows no live node '{node}'", expected=", ".join(sorted(known))[:300]))
    return str(known[node])


def _measure(request: str) -> Iterator[str]:
    """On the node: every row's line as it is finished."""
    import queue
    import threading

    from splitplan.profiler.worker import serve

    lines: queue.Queue[str | BaseException | None] = queue.Queue()

    def work() -> None:
        try:
            serve(request, lines.put)
            lines.put(None)
        except BaseException as error:
            lines.put(error)

    threading.Thread(target=work, daemon=True).start()
    while (line := lines.get()) is not None:
        if isinstance(line, BaseException):
            raise line
        yield line


def main() -> int:
    """Entry of the driver process."""
    try:
        import ray
    except ImportError:
        sys.stderr.write("error: Ray is not installed here\n  next: pip install ray\n")
        return 1
    try:
        run_task(ray, sys.argv[1], int(sys.argv[2]), sys.stdin.readline(), sys.stdout.write)
    except SplitplanError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
