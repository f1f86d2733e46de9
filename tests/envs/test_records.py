"""Rows of JSON, JSONL and parquet files, and the errors about them."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.tasks.records import Record, parse_records, read_records

ROWS = [{"word": "a", "num": 1}, {"word": "é", "num": 2}]


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


def fields(path):
    return [record.fields for record in read_records(path)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.json", json.dumps(ROWS)),
        ("rows.json", json.dumps({"x": ROWS[0], "y": ROWS[1]})),
        ("rows.json", "\n".join(map(json.dumps, ROWS))),
        ("rows.jsonl", "\n".join(map(json.dumps, ROWS)) + "\n"),
        ("rows.jsonl", "\r\n\r\n".join(map(json.dumps, ROWS))),
        ("rows.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_every_layout_gives_the_same_rows(tmp_path, name, text, encoding):
    assert fields(write(tmp_path / name, text, encoding)) == ROWS


def test_parquet_gives_the_same_rows(tmp_path):
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert fields(tmp_path / "rows.parquet") == ROWS


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_an_empty_file_has_no_rows(tmp_path, name):
    assert fields(write(tmp_path / name, "\n")) == []


def test_keys_are_names_or_indices_and_places_name_the_line(tmp_path):
    by_name = list(read_records(write(tmp_path / "a.json", json.dumps({"x": {}, "y": {}}))))
    assert [record.key for record in by_name] == ["x", "y"]
    lines = list(read_records(write(tmp_path / "b.jsonl", "{}\n\n{}")))
    assert [record.key for record in lines] == ["0", "1"]
    assert lines[1].place == f"{tmp_path / 'b.jsonl'}:3"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": ', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", '{"a": 1}\n[1]', r"a\.jsonl:2: expected an object, got \[1\]"),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}", r"a\.jsonl:1: .*too long"),
        ("a.jsonl", "[" * 200_000, r"a\.jsonl:1: nested too deeply"),
        ("a.json", "{", r"a\.json:1: not JSON"),
        ("a.json", '{"a":\n oops}', r"a\.json:2: not JSON"),
        ("a.json", '{"k": 3}', r"a\.json row k: expected an object, got 3"),
        ("a.json", '{"7": {}, "8": {}, "7": {}}', r"a\.json:1: .* the key '7' twice"),
        ("a.json", '[{}, {"word": 1, "word": 2}]', r"a\.json:1: .* the key 'word' twice"),
        ("a.jsonl", '{}\n{"table": {"n": 1, "n": 1}}', r"a\.jsonl:2: .* the key 'n' twice"),
        ("a.json", "3", r"a\.json: expected an array or an object"),
        ("a.json", "[" * 200_000, r"a\.json:1: nested too deeply"),
        ("a.json", "[" + "9" * 5000 + "]", r"a\.json:1: .*too long"),
        ("a.parquet", "no parquet", r"a\.parquet: not a parquet file"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message) as caught:
        list(read_records(write(tmp_path / name, text)))
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_folder_or_binary_file_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: no such file"):
        read_records(tmp_path / "none.json")
    with pytest.raises(DataError, match="is a folder"):
        read_records(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'["\xff"]')
    with pytest.raises(DataError, match="not UTF-8 text"):
        read_records(tmp_path / "latin.json")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [("a", str, "a"), (2, int, 2), (2, float, 2.0), (0.5, float, 0.5), (True, bool, True)],
)
def test_a_field_of_the_right_type_is_returned(value, kind, expected):
    got = Record("f:1", "0", {"x": value}).get("x", kind)
    assert got == expected
    assert type(got) is kind


@pytest.mark.parametrize(
    ("value", "kind"), [(True, int), (True, float), (1, bool), (1.0, int), ("1", int), (None, str)]
)
def test_a_field_of_another_type_is_an_error_that_names_it(value, kind):
    with pytest.raises(DataError, match=rf"f:1: field 'x' must be {kind.__name__}, got"):
        Record("f:1", "0", {"x": value}).get("x", kind)


def test_nested_fields_keep_their_place():
    child = Record("f:1", "0", {"outer": {"inner": 3}}).child("outer")
    assert child.get("inner", int) == 3
    with pytest.raises(DataError, match=r"f:1: field 'outer': field 'other' is missing"):
        child.get("other", int)


def test_rows_that_are_refused_are_named_together(tmp_path):
    def parse(record):
        if record.get("num", int) % 2:
            raise record.error("num", "is odd")
        return record.fields["num"]

    lines = [json.dumps({"num": n}) for n in range(5)]
    path = write(tmp_path / "rows.jsonl", "\n".join(lines))
    odd = f"{path}:2: field 'num' is odd; {path}:4: field 'num' is odd"
    with pytest.raises(DataError) as caught:
        parse_records(path, parse)
    assert str(caught.value) == odd
    path.write_text("\n".join([*lines, "{", *lines]), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        parse_records(path, parse)
    assert str(caught.value).startswith(f"{odd}; {path}:6: not JSON")
    path.write_text("\n".join([json.dumps({"num": 1})] * 30), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        parse_records(path, parse)
    assert str(caught.value).count("is odd") == 10
    path.write_text(json.dumps({"num": 4}), encoding="utf-8")
    assert parse_records(path, parse) == [4]
