"""Stop strings end sequences where Hugging Face's StopStringCriteria ends them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from qkv.decode import Engine, GenerationConfig
from qkv.model.stop_strings import StopStringCriteria
from tests.support.text_oracle import CORPUS

TOKENIZERS = {
    "byte": "gpt",
    "wordpiece": "bert",
    "unigram": "t5",
    "bpe": "seq2seq",
    "char": "bos-eos",
}
MODELS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "GPT2LMHeadModel": (
        "byte",
        transformers.GPT2Config,
        dict(n_embd=32, n_layer=2, n_head=4, n_positions=40),
    ),
    "T5ForConditionalGeneration": (
        "unigram",
        transformers.T5Config,
        dict(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0),
    ),
}


def train_tokenizer(type: str, folder: Path) -> tuple[qkv.Tokenizer, Any]:
    """Return a tokenizer, and the same one as a class of Hugging Face."""
    tokenizer = qkv.Tokenizer.train(CORPUS, type=type, vocab_size=300, template=TOKENIZERS[type])
    tokenizer.save(folder)
    return tokenizer, transformers.AutoTokenizer.from_pretrained(folder)


def choose_substring(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text))
    return text[start : start + rng.randrange(1, 6)]


@pytest.mark.parametrize("type", TOKENIZERS)
def test_criteria_equal_hugging_faces(type: str, tmp_path: Path) -> None:
    tokenizer, original_tokenizer = train_tokenizer(type, tmp_path)
    rng = random.Random(0)
    num_stopped = 0
    for number in range(60):
        token_ids = tokenizer.encode(rng.choice(CORPUS), add_special_tokens=False)[:14]
        if number % 2:  # of any kind after the first, special tokens and single bytes too
            token_ids[1:] = [rng.randrange(len(tokenizer)) for _ in token_ids[1:]]
        text = tokenizer.decode(token_ids, skip_special_tokens=False).replace("\ufffd", "")
        stop_strings = (choose_substring(rng, text), choose_substring(rng, text))
        original = transformers.StopStringCriteria(original_tokenizer, [*stop_strings])
        prompt_length = rng.randrange(1, 5)
        criteria = StopStringCriteria(
            tokenizer=tokenizer, stop_strings=stop_strings, prompt_ids=token_ids[:prompt_length]
        )
        for end in range(prompt_length + 1, len(token_ids) + 1):
            expected = bool(original(torch.tensor([token_ids[:end]]), None)[0])
            assert criteria(token_ids[prompt_length:end]) == expected, (stop_strings, end)
            num_stopped += expected
    assert num_stopped > 50


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_generate_gives_hugging_faces_ids(name: str, num_beams: int, tmp_path: Path) -> None:
    type, make_config, sizes = MODELS[name]
    tokenizer, original_tokenizer = train_tokenizer(type, tmp_path)
    torch.manual_seed(0)
    length = len(tokenizer)
    config = make_config(
        **sizes, vocab_size=length + 4, eos_token_id=length, pad_token_id=length + 1
    )
    original = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.normal_(0, 0.3)
    original.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    rng = random.Random(num_beams)
    input_ids = torch.randint(4, length, (3, 6))
    settings: dict[str, Any] = dict(max_new_tokens=12, num_beams=num_beams, do_sample=False)
    mask = torch.ones_like(input_ids)
    ids = original.generate(input_ids, attention_mask=mask, **settings)
    texts = [
        tokenizer.decode([token_id for token_id in row if token_id < len(tokenizer)])
        for row in ids[:, -12:].tolist()
    ]
    num_shorter = 0
    for number in range(8):
        stop_strings = [choose_substring(rng, texts[number % 3].replace("\ufffd", "") + ".")]
        expected = original.generate(
            input_ids,
            attention_mask=mask,
            stop_strings=stop_strings,
            tokenizer=original_tokenizer,
            **settings,
        )
        assert model.generate(input_ids, stop_strings=stop_strings, **settings).tolist() == (
            expected.tolist()
        )
        num_shorter += expected.tolist() != ids.tolist()
    assert num_shorter > 3


def test_rows_end_independently_and_one_string_is_a_list_of_one() -> None:
    model = qkv.build("gpt2", vocab_size=60, width=16, depth=1, heads=2, max_positions=40)
    model.tokenizer = qkv.Tokenizer.train(CORPUS, type="char", vocab_size=60, template="plain")
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    input_ids = torch.randint(0, 60, (4, 3))
    settings: dict[str, Any] = dict(max_new_tokens=20, eos_token_id=None, pad_token_id=59)
    full = model.generate(input_ids, **settings).tolist()
    stop = model.tokenizer.decode(full[0][9:10])
    rows = model.generate(input_ids, stop_strings=stop, **settings).tolist()
    assert rows == model.generate(input_ids, stop_strings=[stop], **settings).tolist()
    ends = [row[3:].index(full[0][9]) + 4 if full[0][9] in row[3:] else 23 for row in full]
    assert ends[0] <= 10
    assert len({*ends}) > 1
    for row, expected, end in zip(rows, full, ends, strict=True):
        assert row == expected[:end] + [59] * (max(ends) - end)


def test_stop_strings_of_generation_config_json_are_read(tmp_path: Path) -> None:
    model = qkv.build("gpt2", vocab_size=60, width=16, depth=1, heads=2, max_positions=40)
    model.tokenizer = qkv.Tokenizer.train(CORPUS, type="char", vocab_size=60, template="plain")
    model.save(tmp_path)
    input_ids = torch.tensor([[5, 6, 7]])
    new_ids = model.generate(input_ids, max_new_tokens=9)[0, 3:].tolist()
    stop = model.tokenizer.decode(new_ids[:1])
    (tmp_path / "generation_config.json").write_text(json.dumps({"stop_strings": stop}))
    assert qkv.load(tmp_path).generate(input_ids, max_new_tokens=9)[0, 3:].tolist() == new_ids[:1]
    text = model.tokenizer.decode(input_ids[0].tolist())
    completion = qkv.task("complete", qkv.load(tmp_path), max_new_tokens=9)(text)
    assert completion.new_text.endswith(stop)
    assert completion.finish_reason == "stop"


def test_stop_strings_need_a_tokenizer() -> None:
    model = qkv.build("gpt2", vocab_size=60, width=16, depth=1, heads=2, max_positions=40)
    message = r"^stop_strings is \('a',\), and the model has no tokenizer to find them with"
    with pytest.raises(ValueError, match=message):
        model.generate(torch.tensor([[1]]), stop_strings="a")
    config = GenerationConfig(stop_strings=("a",), max_new_tokens=3)
    engine: Any = Engine(model.net)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^stop_strings is \('a',\), expected none without a tokenizer"
    ):
        engine.add_request([1], generation_config=config)
    engine.add_request(
        [1], generation_config=config, stopping_criteria=lambda token_ids: len(token_ids) == 2
    )
    while engine.has_unfinished_requests:
        outputs = engine.step()
    assert outputs[0].results[0].finish_reason == "stop"
