"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("catalogs", "kernels", "profiler", "planner", "launcher")


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("splitplan.")}
    return found & set(ROOMS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    """catalogs ← kernels ← profiler ← planner ← launcher; only planner/cli may reach for the launcher."""
    room = path.relative_to(ROOT).parts[0]
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    if path.is_relative_to(ROOT / "planner" / "cli"):
        allowed.add("launcher")
    assert imported_rooms(path) <= allowed


def test_every_package_is_installed() -> None:
    """A folder with an __init__.py that pyproject.toml forgets would be missing from the wheel."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        "splitplan." + ".".join(init.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for init in (ROOT / room).rglob("__init__.py")
    }
    assert listed == found


def test_help_imports_nothing_heavy() -> None:
    """`planner --help` must answer at once: no numpy, pydantic, yaml, solver, torch or numba on the way."""
    code = (
        "import sys\n"
        "from splitplan.planner.cli.main import app\n"
        "from typer.main import get_command\n"
        "get_command(app)\n"
        "heavy = {'numpy', 'pydantic', 'yaml', 'pulp', 'highspy', 'networkx', 'torch', 'triton', 'numba', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
