"""Reading the YAML and JSON files users touch: one mapping per file, every problem reported with its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from splitplan.catalogs.errors import DocumentError, Problem, nearest_names, shorten

MAX_DOCUMENT_BYTES = 4 * 2**20
KeyPath = tuple[str | int, ...]
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


def dotted(key_path: KeyPath) -> str:
    """`racks[0].nodes[2].gpu` for ("racks", 0, "nodes", 2, "gpu")."""
    text = ""
    for part in key_path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def read_document(path: str | Path, what: str = "file", *, max_bytes: int = MAX_DOCUMENT_BYTES) -> Document:
    """Read a YAML or JSON mapping. Raises DocumentError, never a parser's own exception."""
    return parse_document(read_text(path, what, max_bytes=max_bytes), str(path), what)


def read_text(path: str | Path, what: str = "file", *, max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """A UTF-8 text file of at most `max_bytes`, or a DocumentError that says why not."""
    where = str(path)
    try:
        with open(path, "rb") as handle:
            raw = handle.read(max_bytes + 1)
    except FileNotFoundError:
        raise DocumentError(Problem(f"no such {what}", where, next_step="check the path")) from None
    except OSError as error:
        raise DocumentError(Problem(f"cannot read {what}: {error.strerror}", where)) from None
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


def parse_document(text: str, path: str, what: str = "file") -> Document:
    """Parse YAML or JSON text into a Document."""
    loader = yaml.SafeLoader(text) if not hasattr(yaml, "CSafeLoader") else yaml.CSafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        problems: list[Problem] = []
        if node is not None:
            _walk(node, (), path, lines, problems)
        if problems:
            raise DocumentError(problems)
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else path
        message = f"not valid YAML: {shorten(error.problem or error.context)}"
        raise DocumentError(Problem(message, where, expected=f"a {what} in YAML or JSON")) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(
            Problem(f"not valid YAML: {shorten(error)}", path, expected=f"a {what} in YAML or JSON")
        ) from None
    finally:
        loader.dispose()
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise DocumentError(Problem(f"holds {found}", f"{path}:1", expected=f"a mapping of keys to values ({what})"))
    return Document(path, data, lines)


def _walk(node: yaml.Node, at: KeyPath, path: str, lines: dict[KeyPath, int], problems: list[Problem]) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = (*at, str(key_node.value))
            if key in lines and key_node.value != "<<":
                problems.append(
                    Problem(
                        f"key given twice (first at line {lines[key]})",
                        f"{path}:{key_node.start_mark.line + 1}",
                        dotted(key),
                    )
                )
            lines[key] = key_node.start_mark.line + 1
            _walk(value_node, key, path, lines, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*at, index), path, lines, problems)


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
