"""A toy experiment, and tiny data files of the experiments of the package."""

from pathlib import Path

import pytest

TOY_EXPERIMENT = """
[about]
title = "Toy"
question = "Does the harness run?"

[[cells]]
measure = "attention-gradient"
settings = { num_keys = 8, num_queries = 16 }
variants = { scaled = { is_scaled = true }, unscaled = { is_scaled = false } }
axes = { head_dim = [4, 16], seed = [0, 1] }
reduced = { axes = { head_dim = [4], seed = [0] }, settings = { num_queries = 4 } }

[[panels]]
title = "Gradient"
x = "head_dim"
y = "gradient"
x_label = "d"
y_label = "norm"
x_scale = "log2"
"""


@pytest.fixture
def toy_path(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY_EXPERIMENT, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    words = "the cat saw a dog and then it ran home to sleep near red fires".split()
    lines = [" ".join(words[i % 7 : i % 7 + 3 + i % 5]) + f" {i % 10}." for i in range(300)]
    (folder / "input.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "imdb.txt").write_text("\n".join(lines), encoding="utf-8")
    pairs = [f"{line}\t{line[::-1]}" for line in lines]
    (folder / "fra-eng.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    labeled = [f"{line}\t{number % 2}" for number, line in enumerate(lines)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(["sentence\tlabel", *labeled]), encoding="utf-8")
    return folder
