"""`planner profile engine` measures a running engine from outside; `worker` is the far end of `--via`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from splitplan.planner.cli import output

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
