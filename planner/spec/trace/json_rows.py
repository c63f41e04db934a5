"""JSON traces: Mooncake and our own as JSON lines, results of `vllm bench serve`, and ShareGPT conversations."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.planner.spec.trace import block as faults
from splitplan.planner.spec.trace.block import DEFAULT_BLOCK_TOKENS, Block, Row, RowBuffer, TraceFacts, whole_number
from splitplan.planner.spec.trace.columns import Columns, match_columns
from splitplan.planner.spec.trace.report import Tally

ROWS_PER_BLOCK = 50_000
MAX_LINE_BYTES = 16 * 2**20
MAX_WHOLE_BYTES = 256 * 2**20
CHUNK_BYTES = 2**20
MAX_BLOCK_TOKENS = 2**20
MAX_HASH = 2**62
CHARACTERS_PER_TOKEN = 4.0
"""Of English text under common tokenizers; assumed where a data set holds text and no counts."""
_SKIPPED = re.compile(r"[\s,]*")


def read_json_lines(
    handle: BinaryIO, where: str, wanted: Mapping[str, str], facts: TraceFacts, tally: Tally
) -> Iterator[Block]:
    """Blocks of rows of an open file with one JSON object a line.

    Rows with `hash_ids` keep them as prefix blocks.
    """
    rows = RowBuffer(tally)
    columns: Columns | None = None
    for line, (text, whole) in enumerate(_lines(handle, where), start=1):
        if not text.strip():
            continue
        record = _record(text)
        if record is not None and record.get("kind") == "Trace":
            facts.block_tokens = _block_tokens(record, f"{where}:{line}")
            continue
        tally.num_rows += 1
        if record is None:
            tally.leave_out(faults.TORN if not whole else "no JSON object", line)
            continue
        if columns is None:
            columns = match_columns(list(record), wanted, f"{where}:{line}")
        _add_record(record, columns, line, rows, facts)
        if len(rows) >= ROWS_PER_BLOCK:
            yield rows.flush()
    yield rows.flush()


def _lines(handle: BinaryIO, where: str) -> Iterator[tuple[bytes, bool]]:
    """Lines, and whether each ends in a newline. Raises DocumentError for one too long to be a request."""
    number = 0
    while text := handle.readline(MAX_LINE_BYTES):
        number += 1
        if len(text) == MAX_LINE_BYTES:
            raise DocumentError(
                Problem("a line of more than 16 MiB", f"{where}:{number}", expected="one request a line")
            )
        yield text, text.endswith(b"\n")


def _record(text: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _block_tokens(header: Mapping[str, Any], where: str) -> int:
    size = whole_number(header.get("block_tokens", DEFAULT_BLOCK_TOKENS))
    if size is None or not 1 <= size <= MAX_BLOCK_TOKENS:
        message = f"is {shorten(header['block_tokens'], 30)}"
        raise DocumentError(Problem(message, where, "block_tokens", f"1 to {MAX_BLOCK_TOKENS} tokens"))
    return size


def _add_record(record: Mapping[str, Any], columns: Columns, line: int, rows: RowBuffer, facts: TraceFacts) -> None:
    prompt, output = (whole_number(record.get(name)) for name in (columns.input, columns.output))
    if prompt is None or output is None:
        rows.tally.leave_out(faults.BAD_NUMBER, line)
        return
    time_s = _time_s(record, columns)
    if time_s is None:
        rows.tally.leave_out(faults.BAD_TIME, line)
        return
    hashes = record.get("hash_ids")
    if hashes is not None and not _are_hashes(hashes):
        rows.tally.leave_out("hash_ids are no list of whole numbers", line)
        return
    code = facts.code(str(record.get(columns.klass, ""))[:200]) if columns.klass else 0
    cached = whole_number(record.get("cached_tokens"))
    rows.add(Row(line, time_s, prompt, output, code, hashes, cached))


def _time_s(record: Mapping[str, Any], columns: Columns) -> float | None:
    """Seconds; NaN without a column of times, None when the value is no time.

    `timestamp` beside Mooncake's `input_length` counts milliseconds, as does any name that ends in `ms`.
    """
    name = columns.time
    if name is None:
        return math.nan
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= faults.MAX_TIME:
        return None
    mooncake = name == "timestamp" and columns.input == "input_length"
    milliseconds = mooncake or name.casefold().endswith("ms")
    return value / 1000 if milliseconds else float(value)


def _are_hashes(value: Any) -> bool:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) > -MAX_HASH and max(value) < MAX_HASH)


def read_whole(handle: BinaryIO, where: str) -> Any:
    """A JSON file that must be read in one piece, up to 256 MiB. Raises DocumentError with the line of a mistake."""
    text = handle.read(MAX_WHOLE_BYTES + 1)
    if len(text) > MAX_WHOLE_BYTES:
        raise DocumentError(Problem("larger than 256 MiB", where, expected="a JSON result or data set"))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        expected = "a trace: CSV with a header, JSON lines, or JSON"
        raise DocumentError(
            Problem(f"not valid JSON: {error.msg}", f"{where}:{error.lineno}", expected=expected)
        ) from None
    except (ValueError, RecursionError) as error:
        raise DocumentError(Problem(f"not valid JSON: {shorten(error)}", where)) from None


def read_bench_result(result: Mapping[str, Any], where: str, tally: Tally) -> Block:
    """Rows of what `vllm bench serve --save-result --save-detailed` writes."""
    prompts, outputs, starts = (result.get(name) for name in ("input_lens", "output_lens", "start_times"))
    if not isinstance(prompts, list) or not isinstance(outputs, list) or len(prompts) != len(outputs):
        hint = "record with `vllm bench serve --save-result --save-detailed`"
        raise DocumentError(Problem("has no `input_lens` and `output_lens` of equal length", where, next_step=hint))
    timed = isinstance(starts, list) and len(starts) == len(prompts)
    rows = RowBuffer(tally)
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        tally.num_rows += 1
        record = {"input": prompt, "output": output, "time": starts[index] if timed and starts else None}
        _add_record(record, Columns("time" if timed else None, "input", "output", None), index + 1, rows, TraceFacts())
    return rows.flush()


def read_array(
    handle: BinaryIO, where: str, wanted: Mapping[str, str], facts: TraceFacts, tally: Tally
) -> Iterator[Block]:
    """Blocks of rows of a JSON array of requests, or of ShareGPT conversations, one element in memory at a time.

    Of a conversation, the first prompt and the first answer are a request; four characters are taken for a token.
    """
    rows = RowBuffer(tally)
    columns: Columns | None = None
    estimated = False
    for index, record in enumerate(_array_items(handle, where, tally), start=1):
        tally.num_rows += 1
        if not isinstance(record, dict):
            tally.leave_out("no JSON object", index)
        elif "conversations" in record:
            estimated = True
            _add_conversation(record["conversations"], index, rows)
        else:
            columns = columns or match_columns(list(record), wanted, f"{where} element {index}")
            _add_record(record, columns, index, rows, facts)
        if len(rows) >= ROWS_PER_BLOCK:
            yield rows.flush()
    if estimated:
        tally.notes.append(
            f"text without token counts: {CHARACTERS_PER_TOKEN:g} characters taken for a token (assumed)"
        )
    yield rows.flush()


def _array_items(handle: BinaryIO, where: str, tally: Tally) -> Iterator[Any]:
    """Elements of a JSON array, decoded from a sliding window of text."""
    scan, decoder = json.JSONDecoder().raw_decode, codecs.getincrementaldecoder("utf-8")("replace")
    text, place, index, size = decoder.decode(handle.read(CHUNK_BYTES)).lstrip("\ufeff \t\r\n"), 1, 0, CHUNK_BYTES
    while True:
        place = _SKIPPED.match(text, place).end()  # type: ignore[union-attr]
        if text[place : place + 1] == "]":
            return
        try:
            item, place = scan(text, place)
        except (ValueError, RecursionError):
            if size > MAX_LINE_BYTES:
                message = f"element {index + 1} is no JSON, or longer than 16 MiB"
                raise DocumentError(Problem(message, where, expected="a JSON array of requests")) from None
            chunk = handle.read(size)
            if not chunk:
                tally.num_rows += 1
                tally.leave_out(faults.TORN, index + 1)
                return
            text, place, size = text[place:] + decoder.decode(chunk), 0, size * 2
            continue
        index, size = index + 1, CHUNK_BYTES
        yield item


def _add_conversation(turns: Any, index: int, rows: RowBuffer) -> None:
    texts = [turn.get("value") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    spoken = [text for text in texts[:2] if isinstance(text, str)]
    if len(spoken) < 2:
        rows.tally.leave_out("fewer than two turns of text", index)
        return
    prompt, output = (math.ceil(len(text) / CHARACTERS_PER_TOKEN) for text in spoken)
    rows.add(Row(index, math.nan, prompt, output))
