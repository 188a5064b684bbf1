"""Profiles of data files: lengths, duplicates, columns by role, tables without a header."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.data.profile import (
    count_label_values,
    is_header,
    profile_plain_text,
    profile_texts,
    read_table,
)


def test_profile_of_texts() -> None:
    profile = profile_texts(["a b c", "a", "", "a", " ", "one two"])
    assert (profile.count, profile.num_empty, profile.num_duplicates) == (6, 2, 1)
    assert (profile.median_words, profile.long_words, profile.max_words) == (1, 3, 3)
    assert profile.lengths == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["text", "label"], True),
        (["text", "text"], True),  # which the reader refuses
        (["", "text"], True),  # an index that pandas wrote
        (["", ""], False),
        (["text", "0"], False),
        (["a long text that is no name", "label"], False),
    ],
)
def test_a_header_has_names(cells: list[str], expected: bool) -> None:
    assert is_header(cells) == expected


def test_columns_by_role(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,title,body,topic\n" + "1,A title,A body of words,a\n2,B,More words,b\n" * 6)
    table = read_table(str(path), ("label", "text"), {})
    assert table.columns == {"label": "topic", "text": "body"}
    assert table.get_texts("text")[:2] == ["A body of words", "More words"]
    assert count_label_values(table.get_values("label")) == {"a": 6, "b": 6}
    assert count_label_values([["a", "b"], ["a"]]) == {"a": 2, "b": 1}
    with pytest.raises(ValueError, match="no column 'words'"):
        read_table(str(path), ("label", "text"), {"text": "words"})


@pytest.mark.parametrize("header", ["id;titel;body;topic\n", ""])
def test_a_table_of_excel(tmp_path: Path, header: str) -> None:
    path = tmp_path / "in.csv"
    rows = "".join(
        f'{i};"A; title {i}";A body{", " * (i % 2)} of words {i};{"ab"[i % 2]}\r\n'
        for i in range(12)
    )
    path.write_bytes(f"{header}{rows}".encode("utf-8-sig"))
    table = read_table(str(path), ("label", "text"), {})
    assert table.column_names == (() if header else ("column1", "column2", "text", "label"))
    assert table.get_texts("text")[:2] == ["A body of words 0", "A body,  of words 1"]
    assert table.get_values("label")[:2] == ["a", "b"]


def test_a_value_in_the_first_row_is_no_name(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("good\tA film\nbad\tA book\n" * 6)
    table = read_table(str(path), ("label", "text"), {})
    assert table.column_names == ("label", "text")
    assert len(table.records) == 12
    assert table.get_texts("text")[0] == "A film"


@pytest.mark.parametrize("label", ["same", "label {}"])
def test_a_column_named_label_wins(tmp_path: Path, label: str) -> None:
    path = tmp_path / "in.csv"
    rows = [f"A film,{label.format(n)},{'de' if n % 2 else 'en'}\n" for n in range(12)]
    path.write_text("text,Label,lang\n" + "".join(rows))
    assert read_table(str(path), ("label", "text"), {}).columns["label"] == "Label"


LONG_NAME = "How old are you in years?"


@pytest.mark.parametrize(
    ("header", "row", "columns"),
    [
        (",text,label", "7,A film,{}", {}),  # an index that pandas wrote
        (",kind,remark", "7,{},A film", {}),
        ("text,label,", "A film,{},", {}),
        ("text,label", "text,{}", {}),  # a text that is also the name of its column
        ("Review,Sentiment", "Review,{}", {}),
        (f"text,label,{LONG_NAME}", "A film,{},30", {}),
        (f"{LONG_NAME},label", "I am thirty,{}", {"text": LONG_NAME}),
    ],
)
def test_the_first_row_is_a_header(
    tmp_path: Path, header: str, row: str, columns: dict[str, str]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("\n".join([header, *(row.format("ab"[n % 2]) for n in range(12))]) + "\n")
    table = read_table(str(path), ("label", "text"), columns)
    assert table.column_names == ()
    assert len(table.records) == 12
    assert count_label_values(table.get_values("label")) == {"a": 6, "b": 6}


@pytest.mark.parametrize("header", ["text,text,label", "kind,kind,remark"])
def test_a_header_with_the_same_name_twice(tmp_path: Path, header: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f"{header}\n" + "a,b,c d\n" * 12)
    with pytest.raises(ValueError, match=r"line 1: header .*expected different names"):
        read_table(str(path), ("label", "text"), {})


def test_profile_of_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("ab\nba\n")
    profile = profile_plain_text(str(path))
    assert (profile.num_characters, profile.num_lines, profile.num_distinct) == (6, 2, 3)
    assert profile.num_chunks == 1
