"""Reading the YAML and JSON files users touch: one mapping per file, every problem reported with its line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from splitplan.catalogs.errors import DocumentError, Problem, nearest_names, shorten
from splitplan.catalogs.parsing import KeyPath, dotted, parse_text

__all__ = ["Document", "KeyPath", "dotted", "parse_document", "read_document", "read_text", "validate"]

MAX_DOCUMENT_BYTES = 4 * 2**20
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its mapping and the line of every key."""

    path: str
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def where(self, key_path: KeyPath = ()) -> str:
        """`file:line` of a key, or of its nearest parent that has a line."""
        while key_path and key_path not in self.lines:
            key_path = key_path[:-1]
        line = self.lines.get(key_path)
        return f"{self.path}:{line}" if line else self.path

    def problem(self, key_path: KeyPath, message: str, expected: str = "", next_step: str = "") -> Problem:
        """A `Problem` at a key of this document."""
        return Problem(message, self.where(key_path), dotted(key_path), expected, next_step)


def read_document(
    path: str | Path, what: str = "file", *, max_bytes: int = MAX_DOCUMENT_BYTES, finite: bool = True
) -> Document:
    """Read a YAML or JSON mapping. Raises DocumentError, never a parser's own exception."""
    return parse_document(read_text(path, what, max_bytes=max_bytes), str(path), what, finite=finite)


def read_text(path: str | Path, what: str = "file", *, max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """A UTF-8 text file of at most `max_bytes`, or a DocumentError that says why not."""
    where = str(path)
    try:
        with open(path, "rb") as handle:
            raw = handle.read(max_bytes + 1)
    except FileNotFoundError:
        raise DocumentError(Problem(f"no such {what}", where, next_step="check the path")) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or "not a path"
        raise DocumentError(Problem(f"cannot read {what}: {reason}", shorten(where, 200))) from None
    if len(raw) > max_bytes:
        raise DocumentError(
            Problem(f"larger than {max_bytes / 2**20:g} MiB", where, expected=f"a {what} in YAML or JSON")
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DocumentError(
            Problem("not UTF-8 text", f"{where}:{line}", expected=f"a {what} in YAML or JSON")
        ) from None


def parse_document(text: str, path: str, what: str = "file", *, finite: bool = True) -> Document:
    """Parse YAML or JSON text into a Document. Raises DocumentError and nothing else, whatever the text is.

    Infinity and NaN are errors unless `finite` is False (other people's files use them for keys we do not read).
    """
    parsed = parse_text(text, path, what, finite=finite)
    if not isinstance(parsed.data, dict):
        found = _KINDS.get(type(parsed.data), "a number")
        raise DocumentError(Problem(f"holds {found}", f"{path}:1", expected=f"a mapping of keys to values ({what})"))
    return Document(path, parsed.data, parsed.lines)


_KINDS = {type(None): "nothing", str: "text", list: "a list", bool: "a truth value"}


def write_text(path: str | Path, text: str, what: str = "file") -> None:
    """Write a text file whole or not at all: readers see the old text or the new one. Raises DocumentError."""
    target, staging = Path(path), ""
    try:
        handle, staging = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(staging, 0o644)
        os.replace(staging, target)
    except OSError as error:
        if staging:
            Path(staging).unlink(missing_ok=True)
        raise DocumentError(Problem(f"cannot write {what}: {error.strerror or error}", str(target))) from None


def validate(document: Document, schema: type[ModelT]) -> ModelT:
    """Check a document against a pydantic schema; raises DocumentError with every problem, each with its line."""
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        raise DocumentError([_as_problem(document, schema, item) for item in error.errors()]) from None


def _as_problem(document: Document, schema: type[BaseModel], item: Any) -> Problem:
    key_path: KeyPath = tuple(part for part in item["loc"] if not _is_union_tag(part))
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        near = nearest_names(str(key_path[-1]), _keys_at(schema, key_path[:-1]))
        hint = f"did you mean {' or '.join(near)}?" if near else "remove it or see docs/formats.md"
        return document.problem(key_path, "unknown key", next_step=hint)
    if kind == "missing":
        return document.problem(key_path, "missing")
    if kind in ("value_error", "assertion_error"):
        return document.problem(key_path, shorten(context.get("error", item["msg"]), 300))
    expected = item["msg"].removeprefix("Input should be ")
    return document.problem(key_path, f"is {shorten(repr(item['input']), 60)}", expected=expected)


def _is_union_tag(part: str | int) -> bool:
    return isinstance(part, str) and (part.startswith("function-") or "[" in part)


def _keys_at(schema: Any, key_path: Sequence[str | int]) -> list[str]:
    """Field names (or aliases) allowed at a place of a pydantic schema, as far as it can be followed."""
    for part in key_path:
        if isinstance(part, int):
            continue
        fields = getattr(schema, "model_fields", {})
        if part not in fields:
            return []
        schema = _inner_model(fields[part].annotation)
    return list(getattr(schema, "model_fields", {}))


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None
