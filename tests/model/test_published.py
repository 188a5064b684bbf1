"""Folders as they were published open, and compute what transformers computes with the same tensors."""

import re
import warnings
from pathlib import Path

import pytest
import torch

import qkv
from tests.support import compare
from tests.support.published.bert import BERT, ROBERTA
from tests.support.published.decoders import DECODERS
from tests.support.published.encoder_decoders import ENCODER_DECODERS
from tests.support.published.encoders import ENCODERS
from tests.support.published.folder import PublishedFolder
from tests.support.published.transformer_xl import TRANSFORMER_XL, PublishedXL

FOLDERS: list[PublishedFolder | PublishedXL] = [
    *BERT,
    *ROBERTA,
    *ENCODERS,
    *DECODERS,
    *TRANSFORMER_XL,
    *ENCODER_DECODERS,
]


@pytest.mark.parametrize("published", FOLDERS, ids=str)
def test_a_published_folder_opens(published: PublishedFolder | PublishedXL, tmp_path: Path) -> None:
    inputs, expected = published.compute_expected()
    folder = published.write(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = qkv.load(folder, dtype=torch.float32, **published.load)
    messages = [str(warning.message) for warning in caught]
    unexpected = [
        line for line in messages if not published.warns or not re.search(published.warns, line)
    ]
    assert not unexpected
    assert bool(messages) == bool(published.warns)
    model.save(tmp_path / "saved")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        reloaded = qkv.load(tmp_path / "saved", **published.reload)
        outputs = [each(**inputs, extra_outputs=()) for each in (model, reloaded)]
    assert expected
    for name, value in expected.items():
        torch.testing.assert_close(outputs[0][name], value, atol=2e-5, rtol=1e-4, msg=name)
        compare.assert_bitwise_equal(
            outputs[1][name], outputs[0][name], because=compare.SAME_KERNELS
        )


def test_every_spelling_is_cited() -> None:
    assert len(FOLDERS) >= 80
    assert len({published.name for published in FOLDERS}) == len(FOLDERS)
    for published in FOLDERS:
        assert re.match(
            r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull|blob)/", published.source
        )
        assert published.seen
