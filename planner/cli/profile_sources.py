"""`planner profile engine` measures an engine from outside, `link` a link; `worker` is the far end of `--via`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from splitplan.planner.cli import output

LINK_EXAMPLE = "Example: srun -N2 --ntasks-per-node=1 --gpus-per-task=1 planner profile link --at $FIRST_NODE:29400"
MERGE_EXAMPLE = "Example: planner profile merge h100-sxm.splitplan.npz --engine vllm -o h100-sxm.vllm.npz"
ENGINE_EXAMPLE = "Example: planner profile engine --url http://127.0.0.1:8000 --gpu h100 --tp 2 -o points.csv"


def engine(
    url: Annotated[str, typer.Option(help="The engine's OpenAI endpoint, http://HOST:PORT.")],
    gpu: Annotated[str, typer.Option(help="GPU that it runs on.")],
    tp: Annotated[int, typer.Option(min=1, help="Its tensor parallel size.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Its pipeline parallel size.")] = 1,
    model: Annotated[str, typer.Option(help="Catalog name of its model; default: the name it serves.")] = "",
    served: Annotated[str, typer.Option(help="Served name, where there are several.")] = "",
    dtype: Annotated[str, typer.Option(help="Weight dtype, for the record.")] = "",
    kv_dtype: Annotated[str, typer.Option(help="KV dtype, for the record.")] = "",
    budget_s: Annotated[float | None, typer.Option(help="Seconds after which no new sample is begun.")] = None,
    file: Annotated[Path | None, typer.Option("-o", "--output", help="CSV to write; default: standard output.")] = None,
    json: output.JsonFlag = False,
) -> None:
    """Measure a running engine's steps from outside: prefills over lengths, decodes over batch and context.

    The engine must have nothing else to do. The points calibrate predictions: planner calibrate POINTS.csv
    """
    from splitplan.catalogs.gpus import find_gpu
    from splitplan.profiler import engine_source as source
    from splitplan.profiler.engine_http import EngineClient
    from splitplan.profiler.session import today

    facts = source.EngineFacts(find_gpu(gpu, where="--gpu").name, tp, pp, dtype, kv_dtype, model, today())
    client = EngineClient(url, model=served)
    samples = source.measure_engine(client, budget_s=budget_s, show=_show)
    text = source.csv_text(source.csv_rows(samples, client, facts))
    if file is not None:
        file.write_text(text)
        output.note(f"points written to {file}; next: planner calibrate {file}")
    if json:
        document = {"engine": client.engine, "version": client.version, "model": client.model}
        output.print_json("engine-steps", {**document, "samples": [source.sample_document(item) for item in samples]})
    elif file is None:
        typer.echo(text, nl=False)


def link(
    at: Annotated[str, typer.Option(help="HOST:PORT of rank 0; default: as srun or torchrun say.")] = "",
    rank: Annotated[int | None, typer.Option(help="0 on one host, 1 on the other; default: as srun says.")] = None,
    backend: Annotated[Literal["nccl", "gloo"], typer.Option(help="nccl between GPUs, gloo over TCP.")] = "nccl",
    json: output.JsonFlag = False,
) -> None:
    """Measure the link between two nodes; start it on both. Rank 0 prints what it reaches.

    The figures belong in the fleet file, where they take the place of the catalog's.
    """
    from splitplan.profiler.pair import measure_pair, place_from_environment

    place = place_from_environment(rank, at)
    reading = measure_pair(place, backend)
    if place.rank:
        return
    if json:
        rows = zip(reading.sizes_bytes, reading.seconds, strict=True)
        sizes = [{"num_bytes": num_bytes, "seconds": seconds} for num_bytes, seconds in rows]
        figures = {"latency_s": reading.latency_s, "bytes_per_s": reading.bytes_per_s}
        output.print_json("link", {"backend": backend, **figures, "sizes": sizes})
        return
    for num_bytes, seconds in zip(reading.sizes_bytes, reading.seconds, strict=True):
        typer.echo(f"{num_bytes:>12,} bytes  {1e6 * seconds:12.1f} us  {num_bytes / seconds / 1e9:8.2f} GB/s")
    typer.echo(f"{reading.bytes_per_s / 1e9:.2f} GB/s, first byte after {1e6 * reading.latency_s:.1f} us ({backend})")


def merge(
    measured: Annotated[Path, typer.Argument(help="Profile measured here.")],
    engine: Annotated[str, typer.Option(help="Whose shipped profile of the GPU to put it before.")] = "vllm",
    base: Annotated[Path | None, typer.Option(help="A profile file instead of the shipped one.")] = None,
    file: Annotated[Path | None, typer.Option("-o", "--output", help="Default: <gpu>.<engine>.npz here.")] = None,
    json: output.JsonFlag = False,
) -> None:
    """Put what was measured here before what was published: its rows replace, and the published are scaled to meet."""
    from splitplan.catalogs.gpus import find_gpu
    from splitplan.profiler.merge import merge_profiles
    from splitplan.profiler.store import find_profile, load_profile, save_profile

    ours = load_profile(measured)
    theirs = load_profile(base) if base else find_profile(ours.gpu, engine)
    merged = merge_profiles(theirs, ours, find_gpu(ours.gpu))
    path = file or Path(f"{merged.gpu}.{merged.engine}.npz")
    content_hash = save_profile(merged, path)
    scales = {key: value for key, value in merged.provenance.items() if key.startswith("merged")}
    if json:
        output.print_json("profile-merge", {"path": str(path), "content_hash": content_hash, "merged": scales})
        return
    typer.echo(f"{path}  {merged.gpu}, {merged.engine} {merged.engine_version}")
    for key, value in scales.items():
        typer.echo(f"  {key}: {value}")
    output.note(f"Next: planner solve … --profile {path}")


def worker(
    request: Annotated[Path | None, typer.Option(help="File with the request; default: standard input.")] = None,
) -> None:
    """Measure the points of a request and write each row as a line; started by `planner profile --via`."""
    from splitplan.catalogs.documents import read_text
    from splitplan.profiler.worker import serve

    def write(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    serve(read_text(request, "request") if request else sys.stdin.readline(), write)


def _show(sample: object) -> None:
    from splitplan.profiler.engine_source import Sample

    assert isinstance(sample, Sample)
    if sys.stderr.isatty():
        time = "no time" if sample.median_s is None else f"{1e3 * sample.median_s:.2f} ms"
        output.note(f"{sample.phase} batch {sample.batch}, {sample.tokens} tokens: {time} {sample.remark}")
