"""TOML that is nested without end is refused."""

import pytest

from qkv.files import MAX_TOML_DEPTH, parse_toml
from tests.support.limits import get_error_message


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * 100_000}",
        f"a = {'[' * 100_000}{']' * 100_000}",
        f"a = {'{b = ' * 100_000}1{'}' * 100_000}",
        f"{'a.' * 100_000}a = 1",
        f"[{'a.' * 50_000}a]\n" + "b = 1\n" * 50_000,
        f"[[{'a.' * 1000}a]]",
        f"b = {{ {'a . ' * 100_000}a = 1 }}",
    ],
    ids=lambda text: text[:12],
)
def test_deep_toml_is_an_error(text: str) -> None:
    assert "nested deeper than" in get_error_message(lambda: parse_toml(text))


def test_usual_toml_is_parsed() -> None:
    depth = MAX_TOML_DEPTH - 2
    assert parse_toml(f"[a.b]\nc.d = 1\nweights = [{'0.5, ' * 2000}]")["a"]["b"]["c"] == {"d": 1}
    assert parse_toml(f"a = {'[' * depth}{']' * depth}")
    with pytest.raises(ValueError, match="line 1"):
        parse_toml("a = = 1")
