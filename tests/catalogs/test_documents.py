"""User files: hostile and mistaken text gives one clear problem with its line, and nothing but DocumentError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from splitplan.catalogs.documents import parse_document, read_document, validate
from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.catalogs.fields import Fraction, Name, NonNegativeInt, PositiveFinite, PositiveInt, Strict


def laughs(levels: int) -> str:
    """The classic bomb: each level repeats the one before nine times."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, levels):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    return text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml:1: holds nothing; expected a mapping"),
        ("   \n\n", "holds nothing"),
        ("[1, 2]", "holds a list"),
        ("just words", "holds text"),
        ("3", "holds a number"),
        ("a: 1\nb:\n  c: 2\n  c: 3", "f.yaml:4 `b.c`: key given twice (first at line 3)"),
        ('{"a": 1,\n "a": 2}', "f.yaml:2 `a`: key given twice (first at line 1)"),
        ("a: .nan", "f.yaml:1 `a`: .nan is not a finite number"),
        ("a:\n  - 1\n  - -.inf", "f.yaml:3 `a[1]`: -.inf is not a finite number"),
        ("a: 1e999", "1e999 is not a finite number"),
        ("a: " + "9" * 5000, "is not a finite number"),
        ('{"a":\n NaN}', "f.yaml:2 `a`: NaN is not a finite number"),
        ('{"a": [1, -Infinity]}', "`a[1]`: -Infinity is not a finite number"),
        ('{"a": 1e999}', "1e999 is not a finite number"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ("a: !!python/object/apply:os.system [ls]", "the YAML tag"),
        ("a: !!python/name:os.system x", "the YAML tag"),
        ("a: !!binary aGk=", "binary is not allowed here"),
        (
            "a:\n\t- b",
            "f.yaml:2: not valid YAML: found character that cannot start any token (there is a tab on the line",
        ),
        ('a: "abc', "f.yaml:1: not valid YAML: found unexpected end of stream"),
        ("a: b: c", "mapping values are not allowed"),
        ("a: 1\n---\nb: 2", "another document"),
        ("? [x, y]\n: 3", "a key must be a name, not a list or mapping"),
        ("a: 1\nb: \x00", "f.yaml:2: not text: holds the character U+0000"),
        ("a: &x [*x]", "nested deeper than 64 levels, or an alias that contains itself"),
        ("a: &x\n  b: *x", "nested deeper than 64 levels, or an alias that contains itself"),
        ("[" * 200 + "]" * 200, "nested deeper than 64 levels"),
        ("{" * 100_000, "not valid YAML"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested deeper than 64 levels"),
        (laughs(12), "holds more than 500,000 values (aliases counted as often as they are used)"),
        ("- a\n" * 600_000, "holds more than 500,000 values"),
        ("*nowhere", "not valid YAML"),
    ],
)
def test_bad_text_is_one_clear_problem(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(text, "f.yaml", "fleet")
    assert message in str(caught.value)
    assert str(caught.value).startswith("f.yaml")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1} x', "f.json:1: not valid JSON: extra data"),
        ('{"a": 1,\n}', "not valid JSON"),
        ("a: 1", "not valid JSON"),
        ('{"a":' * 100_000, "nested deeper than 64 levels"),
        ("", "holds nothing"),
    ],
)
def test_file_named_json_must_be_json(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(text, "f.json")
    assert message in str(caught.value)


def test_files_that_cannot_be_text(tmp_path: Path) -> None:
    """10 MB of garbage, binary, a folder and nothing at all: named file, no traceback."""
    garbage, binary = tmp_path / "garbage.yaml", tmp_path / "binary.yaml"
    garbage.write_bytes(b"\xde\xad" * 5_000_000)
    binary.write_bytes(b"kind: x\n\xff\xfe")
    for path, message in (
        (garbage, "garbage.yaml: larger than 4 MiB"),
        (binary, "binary.yaml:2: not UTF-8 text"),
        (tmp_path, "cannot read fleet"),
        (tmp_path / "none.yaml", "no such fleet"),
    ):
        with pytest.raises(DocumentError) as caught:
            read_document(path, "fleet")
        assert message in str(caught.value)


def test_core_schema_keeps_text_that_yaml_1_1_would_bend() -> None:
    document = parse_document(
        "a: 1e3\nb: on\nc: no\nd: 12:30\ne: 2026-11-29\n8: x\nf: 0x10\ng: 010\nh: ~\ni: True", "f.yaml"
    )
    assert document.data == {
        "a": 1000.0,
        "b": "on",
        "c": "no",
        "d": "12:30",
        "e": "2026-11-29",
        "8": "x",
        "f": 16,
        "g": 10,
        "h": None,
        "i": True,
    }


def test_anchors_and_merges_work_for_those_who_mean_well() -> None:
    text = "base: &base {gpu: h100, count: 8}\nnode: {<<: *base, count: 4}\nboth: {<<: [{a: 1}, {a: 2, b: 3}]}"
    data = parse_document(text, "f.yaml").data
    assert data["node"] == {"gpu": "h100", "count": 4}
    assert data["both"] == {"a": 1, "b": 3}


def test_lines_are_those_of_the_keys_in_both_languages() -> None:
    as_yaml = parse_document("a:\n  - b: 1\n    c: 2\n  - d:\n      e: 3\n", "f.yaml")
    as_json = parse_document('{"a":\n [{"b": 1,\n   "c": 2},\n  {"d":\n    {"e": "x\\"}"}}]}', "f.json")
    for document in (as_yaml, as_json):
        assert document.where(("a", 0, "c")) == f"{document.path}:3"
        assert document.where(("a", 1, "d", "e")) == f"{document.path}:5"
        assert document.where(("a", 1, "d", "missing")) == f"{document.path}:4"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(), values, max_size=4))
def test_json_text_reads_back_as_it_was(data: dict[str, Any]) -> None:
    """The second answer is Python's own JSON; only lone surrogates are refused."""
    text = json.dumps(data)
    try:
        assert parse_document(text, "f.json").data == data
    except DocumentError as error:
        assert "surrogate" in str(error)  # noqa: PT017


@settings(max_examples=400, deadline=None)
@given(
    st.text(max_size=200)
    | st.text(alphabet="{}[]:,-#&*!|>\"'%@`?~<\n\t ab01.e", max_size=120)
    | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1"))
    | st.builds(lambda data: yaml.safe_dump(data, allow_unicode=True), values)
)
def test_no_text_raises_anything_but_document_error(text: str) -> None:
    for path in ("f.yaml", "f.json"):
        problems: tuple[Problem, ...] = ()
        try:
            data = parse_document(text, path).data
        except DocumentError as error:
            problems = error.problems
        assert all(problem.message and problem.where.startswith(path) for problem in problems)
        assert problems or isinstance(data, dict)


def test_control_characters_never_reach_the_terminal() -> None:
    assert shorten("a\x1b[31mred\x07") == "a\ufffd[31mred\ufffd"


class Node(Strict):
    name: Name
    gpus: PositiveInt
    spare: NonNegativeInt = 0
    price: PositiveFinite
    share: Fraction = 1.0


class Lab(Strict):
    nodes: list[Node]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpus: -1", "f.yaml:3 `nodes[0].gpus`: is -1; expected greater than 0"),
        ("gpus: 0", "expected greater than 0"),
        ("gpus: true", "`nodes[0].gpus`: is true; expected a number"),
        ("gpus: 1.5", "`nodes[0].gpus`: is 1.5"),
        ("gpus: 99999999999999999999", "expected less than or equal to"),
        ("gpus: many", "`nodes[0].gpus`: is 'many'"),
        ("gpus: 8\n    share: 1.5", "`nodes[0].share`: is 1.5; expected less than or equal to 1"),
        ("gpu: 8", "f.yaml:3 `nodes[0].gpu`: unknown key\n  next: did you mean gpus"),
    ],
)
def test_field_types_name_line_key_and_range(line: str, message: str) -> None:
    document = parse_document(f"nodes:\n  - name: n1\n    {line}\n    price: 2.5\n", "f.yaml")
    with pytest.raises(DocumentError) as caught:
        validate(document, Lab)
    assert message in str(caught.value)


def test_several_problems_come_in_one_go() -> None:
    document = parse_document("nodes:\n  - {name: '', gpus: 0, price: -1}\n  - {gpus: 1}\n", "f.yaml")
    with pytest.raises(DocumentError) as caught:
        validate(document, Lab)
    assert len(caught.value.problems) == 5


def test_numbers_in_quotes_are_numbers() -> None:
    document = parse_document('nodes: [{name: n, gpus: "8", price: "2.5"}]', "f.yaml")
    assert validate(document, Lab).nodes[0].gpus == 8
    assert issubclass(Lab, BaseModel)
