"""`nvidia-smi topo -m`, one file per host → hosts: NVLink domains, PCI roots and the NICs near the GPUs.

The matrix tells neither the GPU type nor the kind of network: both are the user's to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitplan.catalogs.documents import read_text
from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.spec.readers.hosts import Host, Notes

WHAT = "the output of `nvidia-smi topo -m`"
SAME_ROOT = ("PIX", "PXB")  # no host bridge between them
LINKS_OF_GENERATION = {"nvlink2": 6, "nvlink3": 12, "nvlink4": 18, "nvlink5": 18}
_DEVICE = re.compile(r"GPU\d+|NIC\d+|mlx5_\w+|bnxt_re\w+|ibp\w+|rdma\w+|rocep\w+")
_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Who reaches whom how: `cells[a][b]` is NV18, PIX, PXB, PHB, NODE or SYS."""

    devices: tuple[str, ...]
    cells: dict[str, dict[str, str]]

    @property
    def gpus(self) -> list[str]:
        """GPU0, GPU1, … in order."""
        return [device for device in self.devices if device.startswith("GPU")]

    @property
    def nics(self) -> list[str]:
        """Network devices, in order."""
        return [device for device in self.devices if not device.startswith("GPU")]


def read_topo_matrices(paths: Sequence[Path], gpu: str) -> tuple[list[Host], Notes]:
    """(hosts, notes): one host per file, named after it; `gpu` is the type of all of them."""
    notes = Notes()
    return [_host(path, gpu, notes) for path in paths], notes


def parse_matrix(text: str, where: str) -> Matrix:
    """The matrix of one host. Raises DocumentError when it is torn or not one."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), None)
    if start is None:
        raise DocumentError(Problem("holds no header line GPU0 GPU1 …", where, expected=WHAT))
    devices = [word for word in lines[start].split() if _DEVICE.fullmatch(word)]
    cells: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if not words or words[0] not in devices or words[0] in cells:
            continue
        row = words[1 : 1 + len(devices)]
        if len(row) < len(devices) or not all(_CELL.fullmatch(cell) for cell in row):
            raise DocumentError(
                Problem(f"the row of {words[0]} is torn", f"{where}:{number}", expected=f"{len(devices)} cells")
            )
        cells[words[0]] = dict(zip(devices, row, strict=True))
    missing = [device for device in devices if device not in cells]
    if missing or not cells:
        raise DocumentError(Problem(f"no row for {shorten(', '.join(missing), 60)}", where, expected=WHAT))
    return Matrix(tuple(devices), cells)


def groups(items: Sequence[str], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Connected groups of items, in order of their first member."""
    found: list[list[str]] = []
    for item in items:
        near = [group for group in found if any(joined(item, other) for other in group)]
        merged = sorted([member for group in near for member in group] + [item], key=items.index)
        found = [group for group in found if group not in near] + [merged]
    return sorted(found, key=lambda group: items.index(group[0]))


def pci_roots(matrix: Matrix) -> list[list[int]]:
    """GPU indices under each PCI root. NVLink cells hide PCIe, so GPUs also share a root when they share a near NIC."""

    def joined(first: str, second: str) -> bool:
        return matrix.cells[first][second] in SAME_ROOT or bool(set(near[first]) & set(near[second]))

    near = {gpu: [nic for nic in matrix.nics if matrix.cells[gpu][nic] in SAME_ROOT] for gpu in matrix.gpus}
    has_pcie = any(matrix.cells[a][b] in SAME_ROOT for a in matrix.gpus for b in matrix.gpus if a != b)
    if not has_pcie and not any(near.values()):
        return []
    return [[matrix.gpus.index(gpu) for gpu in group] for group in groups(matrix.gpus, joined)]


def near_nics(matrix: Matrix) -> int:
    """NICs with a path to some GPU that crosses no host bridge; all of them where none has."""
    close = [nic for nic in matrix.nics if any(matrix.cells[gpu][nic] in SAME_ROOT for gpu in matrix.gpus)]
    return len(close) or len(matrix.nics)


def _host(path: Path, gpu: str, notes: Notes) -> Host:
    matrix = parse_matrix(read_text(path, "topology matrix"), str(path))
    domains = groups(matrix.gpus, lambda a, b: matrix.cells[a][b].startswith("NV"))
    sizes = sorted({len(domain) for domain in domains})
    linked = sizes[0] if sizes[0] > 1 else 0
    if len(sizes) > 1:
        notes.add(f"NVLink joins groups of {sizes} GPUs, planned with the smallest", path.stem)
    _check_generation(matrix, gpu, path, notes)
    kind = find_gpu(gpu, where=str(path), key="--gpu")
    num_nics = near_nics(matrix)
    if num_nics:
        notes.add(f"{num_nics} NICs near the GPUs, of what kind the matrix does not tell", path.stem)
    return Host(
        name=path.stem,
        gpu=gpu,
        num_gpus=len(matrix.gpus),
        gpu_link=(kind.nvlink or "") if linked else kind.pcie,
        nvlink_domain_gpus=linked or None,
        pci_roots=tuple(tuple(root) for root in pci_roots(matrix)),
        where=str(path),
    )


def _check_generation(matrix: Matrix, gpu: str, path: Path, notes: Notes) -> None:
    """Fewer NVLinks than the type has on a full fabric: a bridge or a mesh, slower than the catalog's link."""
    expected = LINKS_OF_GENERATION.get(find_gpu(gpu, where=str(path), key="--gpu").nvlink or "")
    counts = _nvlink_counts(matrix)
    if expected and counts and min(counts) < expected:
        notes.add(f"NV{min(counts)} between some GPUs, {expected} links make the full rate of {gpu}", path.stem)


def _nvlink_counts(matrix: Matrix) -> list[int]:
    cells: Iterable[str] = (matrix.cells[a][b] for a in matrix.gpus for b in matrix.gpus if a != b)
    return [int(cell[2:]) for cell in cells if cell.startswith("NV")]
