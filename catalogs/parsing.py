"""YAML and JSON text → plain data and the line of every key; hostile text gives one clear problem.

YAML is read with the core schema of YAML 1.2: `1e3` is a number, `on`, `no` and `12:30` are text, dates stay text,
keys are text. Anchors, aliases and merge keys work, within a budget of values that a billion laughs exceed. Numbers
must be finite.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from splitplan.catalogs.errors import DocumentError, Problem, shorten

MAX_DEPTH = 64
MAX_VALUES = 500_000
KeyPath = tuple[str | int, ...]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def dotted(key_path: KeyPath) -> str:
    """`racks[0].nodes[2].gpu` for ("racks", 0, "nodes", 2, "gpu")."""
    text = ""
    for part in key_path:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + shorten(part, 60)
    return text


@dataclass
class Parsed:
    """Data under construction: lines by key path, and what was found wrong on the way."""

    path: str
    finite: bool = True
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_values: int = 0

    def refuse(self, message: str, line: int, at: KeyPath = (), expected: str = "") -> None:
        """Note a problem that lets the reading go on."""
        self.problems.append(Problem(message, f"{self.path}:{line}", dotted(at), expected))

    def count(self, line: int) -> None:
        """Count one more value; raises DocumentError beyond the budget."""
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise self.stop(f"holds more than {MAX_VALUES:,} values (aliases counted as often as they are used)", line)

    def stop(self, message: str, line: int | None, expected: str = "") -> DocumentError:
        """An error that ends the reading."""
        where = f"{self.path}:{line}" if line else self.path
        return DocumentError(Problem(message, where, expected=expected))


def parse_text(text: str, path: str, what: str, *, finite: bool = True) -> Parsed:
    """Parse JSON where the name ends in .json or the text is JSON, else YAML.

    Raises DocumentError with every problem.
    """
    parsed = Parsed(path, finite)
    if text.count("\n") + text.count(",") > MAX_VALUES:
        raise parsed.stop(f"holds more than {MAX_VALUES:,} values", None, f"a {what} in YAML or JSON")
    named_json = path.endswith(".json") and bool(text.strip())
    if not (named_json or text.lstrip().startswith("{")) or not _parse_json(text, parsed, what, must=named_json):
        _parse_yaml(text, parsed, what)
    if parsed.problems:
        raise DocumentError(parsed.problems)
    return parsed


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_json(text: str, parsed: Parsed, what: str, *, must: bool) -> bool:
    """Whether the text is JSON; with `must`, what keeps it from being so is an error."""
    expected = f"a {what} in JSON"
    try:
        parsed.data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not must:
            return False
        if isinstance(error, RecursionError):
            raise parsed.stop(f"nested deeper than {MAX_DEPTH} levels", 1, expected) from None
        line, message = (error.lineno, error.msg) if isinstance(error, json.JSONDecodeError) else (None, str(error))
        raise parsed.stop(f"not valid JSON: {shorten(message.lower())}", line, expected) from None
    _JsonLines(text, parsed).walk((), 0)
    return True


class _JsonLines:
    """A second, shallow pass over text known to be JSON: the line of every key and item, keys given twice, depth."""

    token = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\n|[^\s{}\[\],:"]+', re.DOTALL)

    def __init__(self, text: str, parsed: Parsed) -> None:
        self.parsed = parsed
        self.line = 1
        self.tokens = self._tokens(text)

    def _tokens(self, text: str) -> Iterator[str]:
        for match in self.token.finditer(text):
            if match.group() == "\n":
                self.line += 1
            else:
                yield match.group()

    def walk(self, at: KeyPath, depth: int, token: str | None = None) -> None:
        """Read one value; `token` is its first token where that was read already."""
        token = token or next(self.tokens)
        self.parsed.lines.setdefault(at, self.line)
        self.parsed.count(self.line)
        if depth > MAX_DEPTH:
            raise self.parsed.stop(f"nested deeper than {MAX_DEPTH} levels", self.line)
        if token == "{":
            self._members(at, depth)
        elif token == "[":
            self._items(at, depth)
        elif token[0] == '"':
            self._text(token, at)
        elif token not in ("true", "false", "null") and not math.isfinite(float(token)) and self.parsed.finite:
            self.parsed.refuse(f"{shorten(token, 30)} is not a finite number", self.line, at, "a number")

    def _text(self, token: str, at: KeyPath) -> str:
        text: str = json.loads(token)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.parsed.refuse("holds half of a surrogate pair, which is no character", self.line, at, "text")
        return text

    def _members(self, at: KeyPath, depth: int) -> None:
        token = next(self.tokens)
        while token != "}":
            if token == ",":
                token = next(self.tokens)
            key = (*at, self._text(token, at))
            if key in self.parsed.lines:
                self.parsed.refuse(f"key given twice (first at line {self.parsed.lines[key]})", self.line, key)
            self.parsed.lines[key] = self.line
            next(self.tokens)  # the colon
            self.walk(key, depth + 1)
            token = next(self.tokens)

    def _items(self, at: KeyPath, depth: int) -> None:
        token, index = next(self.tokens), 0
        while token != "]":
            if token == ",":
                token = next(self.tokens)
            self.walk((*at, index), depth + 1, token)
            token, index = next(self.tokens), index + 1


# ── YAML ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _CoreLoader(_Loader):  # type: ignore[misc]
    """PyYAML's safe loader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  PyYAML reads it from the class


_TAG = "tag:yaml.org,2002:"
_PLAIN_KINDS = {"map", "seq", "str", "int", "float", "bool", "null"}
for _tag, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(_TAG + _tag, re.compile(rf"^(?:{_pattern})$"), _first)


def _parse_yaml(text: str, parsed: Parsed, what: str) -> None:
    expected = f"a {what} in YAML or JSON"
    try:
        loader = _CoreLoader(text)
    except yaml.reader.ReaderError as error:  # characters that YAML does not allow, found when the text is taken in
        raise _unreadable(error, text, parsed, expected) from None
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {shorten(error.problem or error.context)}"
        if mark and "\t" in (text.splitlines()[mark.line : mark.line + 1] or [""])[0]:
            message += " (there is a tab on the line: indent with spaces)"
        raise parsed.stop(message, mark.line + 1 if mark else None, expected) from None
    except yaml.reader.ReaderError as error:
        raise _unreadable(error, text, parsed, expected) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise parsed.stop(f"not valid YAML: {shorten(error)}", None, expected) from None
    finally:
        loader.dispose()
    if node is not None:
        parsed.data = _build(node, (), 0, parsed)


def _unreadable(error: yaml.reader.ReaderError, text: str, parsed: Parsed, expected: str) -> DocumentError:
    position = error.position if isinstance(error.position, int) else 0
    code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
    message = f"not text: holds the character U+{code:04X}"
    return parsed.stop(message, text.count("\n", 0, position) + 1, expected)


def _build(node: yaml.Node, at: KeyPath, depth: int, parsed: Parsed) -> Any:
    line = node.start_mark.line + 1
    parsed.lines.setdefault(at, line)
    parsed.count(line)
    if depth > MAX_DEPTH:
        raise parsed.stop(f"nested deeper than {MAX_DEPTH} levels, or an alias that contains itself", line)
    if node.tag.removeprefix(_TAG) not in _PLAIN_KINDS:
        parsed.refuse(f"the YAML tag {shorten(node.tag, 40)} is not allowed here", line, at, "plain text or a number")
        return None
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, at, depth, parsed)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*at, index), depth + 1, parsed) for index, item in enumerate(node.value)]
    return _scalar(node, at, line, parsed)


def _mapping(node: yaml.MappingNode, at: KeyPath, depth: int, parsed: Parsed) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            parsed.refuse("a key must be a name, not a list or mapping", line, at)
            continue
        key = (*at, str(key_node.value))
        if key_node.tag == _TAG + "merge":
            for part in _merged(_build(value_node, key, depth + 1, parsed)):
                merged = {**part, **merged}
            continue
        if key_node.value in own:
            parsed.refuse(f"key given twice (first at line {parsed.lines[key]})", line, key)
        parsed.lines[key] = line
        own[key_node.value] = _build(value_node, key, depth + 1, parsed)
    return {**merged, **own}


def _merged(value: Any) -> list[Mapping[str, Any]]:
    parts = value if isinstance(value, list) else [value]
    return [part for part in parts if isinstance(part, dict)]


def _scalar(node: yaml.Node, at: KeyPath, line: int, parsed: Parsed) -> Any:
    kind, text = node.tag.removeprefix(_TAG), str(node.value)
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    try:
        if kind == "int":
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) and parsed.finite:
        parsed.refuse(f"{shorten(text, 30)} is not a finite number", line, at, "a number")
    return value
