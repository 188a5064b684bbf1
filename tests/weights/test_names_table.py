"""Names tables: tensors without a parameter, with and without a weight or bias."""

import pytest

from qkv.weights.names_table import UNUSED, NamesTable

TABLE = NamesTable("""
    encoder.norm     norm
    -                version
    -                {}.attn.bias
    (-|-)            (text|image).table
    -                positions  keep
    encoder.q,k,v    c_attn  conv1d
""")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("norm.weight", ("encoder.norm.weight", "")),
        ("version", (UNUSED, "")),
        ("11.attn.bias", (UNUSED, "")),
        ("text.table", (UNUSED, "")),
        ("text.table.weight", (UNUSED, "")),
        ("image.table.bias", (UNUSED, "")),
        ("positions", (UNUSED, "keep")),
        ("positions.weight", (UNUSED, "keep")),
        ("c_attn.weight", ("encoder.q.weight", "conv1d")),
        ("version.weight.weight", None),
        ("x.attn.bias", None),
    ],
)
def test_a_checkpoint_name_has_a_row(name: str, expected: tuple[str, str] | None) -> None:
    assert TABLE.find_parameter(name) == expected


def test_a_row_without_a_parameter_is_never_written() -> None:
    names = [mapping.checkpoint_name for mapping in TABLE.map_parameters(["encoder.norm.weight"])]
    assert names == ["norm.weight"]
