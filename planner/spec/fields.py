"""The table of a file format's fields: name, type, unit, bounds, default, meaning; read off the schema that checks.

`python -m splitplan.planner.spec.fields docs/formats.md` writes the tables into that page, between its markers.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from splitplan.planner.spec import fleet_schema, services_schema, workload_schema

_MARKED = re.compile(r"<!-- fields: (\w+) -->\n.*?<!-- end of fields -->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of a format."""

    name: str
    type: str
    unit: str
    bounds: str
    default: str
    meaning: str


def field_rows(schema: type[BaseModel]) -> list[FieldRow]:
    """All fields of a schema in the order of the file."""
    rows = []
    for name, info in schema.model_fields.items():
        parts = _parts(info.annotation)
        metadata = [*info.metadata, *(item for part in parts for item in part[1])]
        required = info.default is PydanticUndefined
        rows.append(
            FieldRow(
                name,
                " or ".join(dict.fromkeys(_type_name(part[0]) for part in parts)),
                _unit(metadata, info),
                _bounds(metadata),
                "required" if required else _default(info.default),
                info.description or "",
            )
        )
    return rows


def field_table(schema: type[BaseModel]) -> str:
    """The rows as a Markdown table under the schema's own sentence."""
    lines = [(schema.__doc__ or "").strip(), "", "| key | type | unit | bounds | default | meaning |"]
    lines.append("|---|---|---|---|---|---|")
    for row in field_rows(schema):
        cells = (f"`{row.name}`", row.type, row.unit, row.bounds, row.default, row.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """A page with every marked table written anew."""
    schemas = {
        name: item for module in (fleet_schema, workload_schema, services_schema) for name, item in vars(module).items()
    }
    return _MARKED.sub(
        lambda match: f"<!-- fields: {match[1]} -->\n{field_table(schemas[match[1]])}\n<!-- end of fields -->", page
    )


def _parts(annotation: Any, metadata: tuple[Any, ...] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
    """The alternatives of an annotation without None, each with its metadata."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _parts(inner, (*metadata, *more))
    if get_origin(annotation) in (Union, UnionType):
        return [part for item in get_args(annotation) if item is not NoneType for part in _parts(item, metadata)]
    return [(annotation, metadata)]


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{item}`" for item in arguments)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.casefold()})"
    return {"int": "whole number", "float": "number", "str": "text", "bool": "yes or no"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _flat(metadata: list[Any]) -> list[Any]:
    return [inner for item in metadata for inner in (item.metadata if isinstance(item, FieldInfo) else [item])]


def _unit(metadata: list[Any], info: FieldInfo) -> str:
    for item in (*metadata, info):
        extra = getattr(item, "json_schema_extra", None)
        if isinstance(extra, dict) and "unit" in extra:
            return str(extra["unit"])
    return ""


def _bounds(metadata: list[Any]) -> str:
    texts = []
    for item in _flat(metadata):
        for kind, attribute, text in ((Gt, "gt", ">"), (Ge, "ge", ">="), (Lt, "lt", "<"), (Le, "le", "<=")):
            if isinstance(item, kind):
                texts.append(f"{text} {_number(getattr(item, attribute))}")
        if isinstance(item, MinLen) and item.min_length > 0:
            texts.append("not empty")
        if isinstance(item, MaxLen):
            texts.append(f"at most {_number(item.max_length)} long")
    return ", ".join(dict.fromkeys(texts))


def _number(value: Any) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _default(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "none"
    return "its own defaults" if isinstance(value, BaseModel) else f"{value}"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
