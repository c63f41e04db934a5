"""Measured rows for tests: a few published figures with their sources, in the benchmark's columns."""

from __future__ import annotations

from pathlib import Path

COLUMNS = (
    "id,source,date,gpu,num_gpus,engine,engine_version,mode,model,dtype,kv_dtype,tp,pp,isl,osl,batch_or_concurrency,"
    "request_rate,ttft_ms_mean,ttft_ms_p50,ttft_ms_p99,tpot_ms_mean,tpot_ms_p50,tpot_ms_p99,output_tok_s,total_tok_s,"
    "req_s,notes,replicas,inferred_fields,quality,source_group"
)

PUBLISHED = Path(__file__).parent / "published.csv"
"""Nine published points, one or two of each engine."""


def one_row(**cells: object) -> str:
    """A CSV file of one row: a static batch of Llama-3.1-8B on one H100 under vLLM 0.11, unless told otherwise."""
    values: dict[str, object] = {
        "id": "row",
        "gpu": "H100-SXM-80GB",
        "engine": "vllm",
        "engine_version": "0.11.0",
        "mode": "static-batch",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "dtype": "bf16",
        "tp": 1,
        "isl": 1024,
        "osl": 128,
        "batch_or_concurrency": 1,
        "tpot_ms_mean": 8,
        "source_group": "test",
        **cells,
    }
    names = COLUMNS.split(",")
    return COLUMNS + "\n" + ",".join(str(values.get(name, "")) for name in names) + "\n"
