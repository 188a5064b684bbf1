"""The small recipes: each objective trains, from files to a saved model, in micro-batches as in one batch."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import qkv
from qkv.batch import Batch
from qkv.data.batches.sampler import Indices, SamplerState
from qkv.model.build import build
from qkv.recipes import RECIPES_FOLDER
from qkv.text import Tokenizer
from qkv.train.evaluate.evaluation_loop import evaluate_batches
from qkv.train.loop.checkpoint import list_checkpoints
from qkv.train.loop.ema import average_checkpoints
from qkv.train.loop.trainer import Report
from qkv.train.objectives import build_vocabulary_info
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.objectives.wrappers import GeneratorDiscriminator
from qkv.train.recipe import Recipe, read_recipe
from qkv.train.run import train_recipe
from qkv.train.setup import Setup, prepare_training
from tests.support import compare
from tools import small_data

RECIPES = RECIPES_FOLDER / "small"

# Upper bounds of the mean losses of the last ten steps; token frequencies alone do not reach them.
# fmt: off
MAX_LOSSES = {
    "causal-lm":                     {"loss": 1.4},
    "segment-recurrent-lm":          {"loss": 1.3},
    "control-code-lm":               {"loss": 0.6},
    "permutation-lm":                {"loss": 1.5},
    "masked-lm":                     {"loss": 1.1},
    "next-sentence-prediction":      {"lm": 1.3, "pair": 0.5},
    "sentence-order-prediction":     {"lm": 1.8, "pair": 0.3},
    "replaced-token-detection":      {"lm": 1.5, "replaced": 11.0},
    "distillation":                  {"soft": 1.6, "lm": 4.6, "cosine": 0.25},
    "seq2seq":                       {"loss": 1.1},
    "generative-question-answering": {"loss": 0.5},
    "summarization":                 {"loss": 0.2},
    "denoising":                     {"loss": 1.1},
    "multilingual-denoising":        {"loss": 1.2},
    "span-corruption":               {"loss": 2.1},
    "mixture-of-experts":            {"loss": 2.2, "balance": 0.035, "z": 0.01},
    "sentence-contrastive":          {"loss": 0.2},
    "image-text-contrastive":        {"loss": 1.8},  # three captions: ln(16 / 3)
    "image-captioning":              {"loss": 0.2},
    "image-classification":          {"loss": 0.1},
    "frame-classification":          {"loss": 0.1},
    "text-to-image":                 {"loss": 0.4},  # of 8 codes, few for each caption
    "sequence-classification":       {"loss": 0.2},
    "multi-label-classification":    {"loss": 0.2},
    "regression":                    {"loss": 0.1},
    "token-classification":          {"loss": 0.1},
    "question-answering":            {"start": 0.5, "end": 0.5},
    "multiple-choice":               {"loss": 0.3},
    "lora":                          {"loss": 0.1},  # the new head alone stays above 0.5
    "rnn-encoder-decoder":           {"loss": 1.3},
    "lstm-seq2seq":                  {"loss": 1.5},
    "bahdanau":                      {"loss": 1.1},
    "luong":                         {"loss": 0.6},
    "lstmn":                         {"loss": 2.0},
    "sequence-autoencoder":          {"loss": 1.2},
}
# fmt: on
# Their loss compares all rows of a batch: see test_step.py.
FULL_BATCH_RECIPES = ("sentence-contrastive", "image-text-contrastive")


PIXEL_RECIPES = ("image-classification", "frame-classification")  # which read no texts


def read_small_recipe(name: str, folder: Path, *flags: str) -> Recipe:
    if "image" in name:
        pytest.importorskip("PIL")
    data_flags = small_data.write_data(name, folder)
    return read_recipe(
        RECIPES / f"{name}.toml",
        [*data_flags, "--run", str(folder / "run"), "--device", "cpu", *flags],
    )


def test_every_objective_has_a_small_recipe() -> None:
    assert (
        {path.stem for path in RECIPES.glob("*.toml")}
        == MAX_LOSSES.keys()
        == small_data.WRITERS.keys()
    )
    flags = ["--data.train", "x"]
    objective_names = {read_recipe(path, flags).objective.name for path in RECIPES.glob("*.toml")}
    assert objective_names == OBJECTIVE_SPECS.keys()
    assert all(path.read_text().startswith("[about]\n") for path in RECIPES.glob("*.toml"))


@pytest.mark.parametrize("name", MAX_LOSSES)
def test_small_recipe_reaches_its_loss(name: str, tmp_path: Path) -> None:
    train_recipe(read_small_recipe(name, tmp_path))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(lines[-1])["metrics"]
    assert {
        key: metrics[key] for key, max_loss in MAX_LOSSES[name].items() if metrics[key] >= max_loss
    } == {}
    model = qkv.load(tmp_path / "run" / "last")
    assert (model.tokenizer is None) == (name in PIXEL_RECIPES)
    if name == "replaced-token-detection":
        generator = qkv.load(tmp_path / "run" / "last" / "generator")
        tokens, generator_tokens = (
            item.net.get_parameter("encoder.embedding.tokens.weight") for item in (model, generator)
        )
        compare.assert_bitwise_equal(tokens, generator_tokens, because="they were one tensor")


def to_double(batch: Batch) -> Batch:
    """Return the batch with its pixel values in fp64."""
    inputs = batch.encoder
    if inputs is None or inputs.pixel_values is None:
        return batch
    return replace(batch, encoder=replace(inputs, pixel_values=inputs.pixel_values.double()))


def compute_gradients(
    net: nn.Module, objective: Objective, setup: Setup, micro_batches: list[Indices]
) -> dict[str, Tensor]:
    """Return the gradients of a batch, each micro-batch weighted by its share of the targets."""
    batches = [
        to_double(objective.collate(setup.sampler.fetch_examples(indices, 0, objective.noise)))
        for indices in micro_batches
    ]
    counts = [objective.count_targets(batch) for batch in batches]
    net.zero_grad(set_to_none=True)
    for batch, count in zip(batches, counts, strict=True):
        for name, loss in objective.compute_losses(net(batch)).items():
            (loss * (count[name] / sum(item[name] for item in counts))).backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *(
            (name, [])
            for name in MAX_LOSSES
            if name not in ("segment-recurrent-lm", *FULL_BATCH_RECIPES)
        ),
        ("sequence-classification", ["--objective.class_weights", "{ pet = 0.1, other = 4 }"]),
        ("token-classification", ["--objective.class_weights", "[3.0, 0.5, 0.2]"]),
        ("token-classification", ["--objective.class_weights", "balanced"]),
    ],
)
def test_micro_batches_equal_one_batch(
    name: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        GeneratorDiscriminator, "sample_tokens", lambda self, logits: logits.argmax(-1)
    )
    setup = prepare_training(read_small_recipe(name, tmp_path, *flags), tmp_path / "run")
    net = setup.net.double().eval()
    for teacher in getattr(net, "_teacher", ()):
        teacher.double()
    expected, actual = (
        compute_gradients(
            net, setup.objective, setup, setup.sampler.split_batch(SamplerState(), count)
        )
        for count in (1, 2)
    )
    assert expected.keys() == actual.keys()
    for key in expected:
        torch.testing.assert_close(actual[key], expected[key], atol=1e-9, rtol=1e-6)


def test_error_for_grad_accum_with_recurrence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.grad_accum 2: .*expected 1"):
        prepare_training(
            read_small_recipe("segment-recurrent-lm", tmp_path, "--train.grad_accum", "2"),
            tmp_path / "run",
        )


def test_pretrained_model_is_trained_with_another_head(tmp_path: Path) -> None:
    """Masked language modeling, then classification: the encoder is kept, the head is new."""
    first_folder = tmp_path / "first"
    first_folder.mkdir()
    train_recipe(
        read_small_recipe(
            "masked-lm",
            first_folder,
            "--model.family",
            "bert",
            "--train.steps",
            "3",
            "--train.warmup_steps",
            "0",
        )
    )
    path = tmp_path / "classify.toml"
    path.write_text(
        '[model]\n[data]\nmax_length = 48\nbatch_size = 32\n[objective]\nname = "sequence-classification"\n'
        "[train]\nsteps = 1\n"
    )
    flags = [
        "--model.load",
        str(first_folder / "run" / "last"),
        "--run",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    setup = prepare_training(
        read_recipe(path, [*flags, *small_data.write_data("sequence-classification", tmp_path)]),
        tmp_path / "run",
    )
    before = qkv.load(first_folder / "run" / "last")
    after = setup.model
    assert after.args["head"] == "sequence-classification"
    assert after.config["architectures"] == ["BertForSequenceClassification"]
    assert after.config["label2id"] == {"other": 0, "pet": 1}
    new, old = (dict(model.net.named_parameters()) for model in (after, before))
    shared = [name for name in new if name.startswith("encoder.")]
    assert shared
    compare.assert_bitwise_equal(
        {name: new[name] for name in shared},
        {name: old[name] for name in shared},
        because=compare.COPIED,
    )


def test_blocks_of_one_long_text_have_special_tokens(tmp_path: Path) -> None:
    flags = ["--data.unit", "file", "--data.overflow", ""]
    flags += ["--objective.whole_word", "true", "--data.fixed_noise", "true"]
    setup = prepare_training(read_small_recipe("masked-lm", tmp_path, *flags), tmp_path / "run")
    batch = setup.objective.collate(
        setup.sampler.fetch_examples(setup.sampler.get_batches(0)[0], 0, setup.objective.noise)
    )
    assert batch.encoder is not None
    assert batch.encoder.input_ids is not None
    tokenizer = setup.model.tokenizer
    assert tokenizer is not None
    assert batch.encoder.input_ids.shape == (16, 64)
    assert {*batch.encoder.input_ids[:, 0].tolist()} == {tokenizer.cls_token_id}
    assert {*batch.encoder.input_ids[:, -1].tolist()} == {tokenizer.sep_token_id}
    block = int(setup.sampler.get_batches(0)[0][0])
    tokens = [
        setup.sampler.fetch_examples(np.array([block]), n, setup.objective.noise)[0]["tokens"]
        for n in (0, 1)
    ]
    assert (tokens[0] == tokens[1]).all()  # the mask is the same in every epoch
    assert block in np.concatenate(setup.sampler.get_batches(1))


@pytest.mark.parametrize(
    "name", ["sequence-classification", "replaced-token-detection", "distillation", "lora"]
)
def test_saved_model_has_the_reported_loss(name: str, tmp_path: Path) -> None:
    flags = ["--data.validation", "0.2", "--train.steps", "20", "--train.eval_every", "20"]
    recipe = read_small_recipe(name, tmp_path, *flags)
    run = tmp_path / "run"
    train_recipe(recipe)
    expected = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    setup = prepare_training(recipe, run)
    model = qkv.load(run / "best")
    assert setup.evaluation_set is not None
    assert model.tokenizer is not None
    vocab = build_vocabulary_info(model.tokenizer, model, max_length=recipe.data.max_length)
    context = SetupContext(
        recipe=recipe,
        tokenizer_folder=str(run / "tokenizer"),
        model=model,
        vocab=vocab,
        trained_model_folder=run / "best",
    )
    net, _ = OBJECTIVE_SPECS[recipe.objective.name].build_module(context)
    with torch.no_grad():
        evaluation = evaluate_batches(net.eval(), setup.evaluation_set.sampler, setup.objective)
    assert evaluation.metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_error_for_rows_longer_than_max_positions(tmp_path: Path) -> None:
    build("bert", "tiny", vocab_size=200, max_positions=8).save(tmp_path / "model")
    path = small_data.write_labeled_texts(tmp_path, random.Random(0))
    Tokenizer.train([path], type="wordpiece", vocab_size=200, template="bert").save(
        tmp_path / "model"
    )
    recipe = tmp_path / "classify.toml"
    recipe.write_text(
        '[model]\n[data]\nbatch_size = 4\n[objective]\nname = "sequence-classification"\n[train]\nsteps = 1\n'
    )
    flags = ["--model.load", str(tmp_path / "model"), "--data.train", str(path), "--device", "cpu"]
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: \d+ tokens, expected at most 8"):
        prepare_training(read_recipe(recipe, flags), tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"data\.max_length 9, expected at most the model's max_positions, 8"
    ):
        prepare_training(read_recipe(recipe, [*flags, "--data.max_length", "9"]), tmp_path / "run")


EXTRA_FLAGS = {
    "permutation-lm": [
        "--data.overflow",
        "",
        "--data.unit",
        "file",
        "--objective.use_mems",
        "true",
        "--model.mem_len",
        "16",
    ],
    "sentence-contrastive": ["--model.dropout", "0.1", "--model.attention_dropout", "0.1"],
    "image-text-contrastive": ["--train.grad_accum", "3"],
    "lora": ["--lora.lora_dropout", "0.2"],
    "text-to-image": ["--objective.translate", "0.2", "--model.dropout", "0.1"],
    "luong": ["--model.dropout", "0.2"],
}


@pytest.mark.parametrize(
    "name",
    [
        "replaced-token-detection",
        "distillation",
        "segment-recurrent-lm",
        "permutation-lm",
        "lora",
        "text-to-image",
        "image-classification",
        "luong",
        "sequence-autoencoder",
        *FULL_BATCH_RECIPES,
    ],
)
def test_stopped_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    flags = ["--train.steps", "12", "--train.log_every", "6", *EXTRA_FLAGS.get(name, [])]
    for folder in ("uninterrupted", "stopped"):
        (tmp_path / folder).mkdir()

    def stop(report: Report) -> None:
        if report.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    train_recipe(read_small_recipe(name, tmp_path / "uninterrupted", *flags))
    recipe = read_small_recipe(name, tmp_path / "stopped", *flags)
    assert train_recipe(recipe, callbacks=[stop]).step == 6
    assert train_recipe(recipe, resume=True).step == 12
    file = "adapter_model.safetensors" if name == "lora" else "model.safetensors"
    weights = [
        load_file(tmp_path / folder / "run" / "last" / file)
        for folder in ("uninterrupted", "stopped")
    ]
    compare.assert_bitwise_equal(weights[1], weights[0], because=compare.RESUMED)


def test_stopped_run_of_epochs_resumes_exactly(tmp_path: Path) -> None:
    """The batches of an epoch are those of the sampler; the schedule ends with the last epoch."""
    flags = "--data.batch_size 0 --data.batch_tokens 240 --train.epochs 2 --train.log_every 1"
    weights = []
    for name in ("uninterrupted", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        recipe = read_small_recipe(
            "sequence-classification", folder, *flags.split(), "--train.steps", ""
        )
        sampler = prepare_training(recipe, folder / "prepared").sampler
        steps = len(sampler.get_batches(0)) + len(sampler.get_batches(1))
        reports: list[Report] = []

        def stop(report: Report) -> None:
            if report.step == 20:
                os.kill(os.getpid(), signal.SIGTERM)

        if name == "stopped":
            assert train_recipe(recipe, callbacks=[stop]).step == 20 < steps
        state = train_recipe(recipe, resume=name == "stopped", callbacks=[reports.append])
        assert state.step == steps
        assert state.sampler_state == SamplerState(2, 0)
        assert reports[-1].lr == pytest.approx(0.0, abs=1e-12)
        weights.append(load_file(folder / "run" / "last" / "model.safetensors"))
    compare.assert_bitwise_equal(weights[1], weights[0], because=compare.RESUMED)


def test_label_names_are_ids_in_the_order_of_the_recipe(tmp_path: Path) -> None:
    names = ["pet", "other", "never seen"]
    flags = ["--model.label_names", '["pet", "other", "never seen"]']
    setup = prepare_training(
        read_small_recipe("sequence-classification", tmp_path, *flags), tmp_path / "run"
    )
    assert list(setup.model.config["id2label"].values()) == names
    assert setup.model.args["num_labels"] == 3
    for index, record in enumerate(setup.recipe.data.open_corpus(setup.recipe.data.train)):
        assert setup.sampler.dataset[index]["label"].tolist() == [names.index(str(record["label"]))]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        (
            "sequence-classification",
            ["--model.head", "lm"],
            r"model\.head 'lm', expected 'sequence-classification' for objective sequence-classi",
        ),
        (
            "sequence-classification",
            ["--model.label_names", '["pet"]'],
            r"model\.label_names has only one label, 'pet'; expected two or more",
        ),
        (
            "sequence-classification",
            ["--model.label_names", '["cat", "dog"]'],
            r"train\.tsv, line \d+: label '\w+', expected one of cat, dog",
        ),
        (
            "sequence-classification",
            ["--model.label_names", '["cat", "cat"]'],
            r"model\.label_names \['cat', 'cat'\], expected each name once",
        ),
        (
            "regression",
            ["--model.label_names", '["a", "b"]'],
            r"model\.label_names \['a', 'b'\], expected one for regression",
        ),
        (
            "causal-lm",
            ["--model.label_names", '["a", "b"]'],
            r"model\.label_names: objective causal-lm has no labels; remove it",
        ),
        (
            "sequence-classification",
            ["--train.steps", "", "--train.epochs", "1", "--train.warmup_steps", "99999"],
            r"train\.warmup_steps 99999, expected at most train\.steps, \d+",
        ),
    ],
)
def test_errors_of_model_and_train_settings(
    name: str, flags: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_training(read_small_recipe(name, tmp_path, *flags), tmp_path / "run")


def test_head_and_pooling_of_the_recipe(tmp_path: Path) -> None:
    flags = ["--model.family", "bert", "--model.head", "pretraining"]
    recipe = read_small_recipe("masked-lm", tmp_path, *flags)
    setup = prepare_training(recipe, tmp_path / "run")
    assert setup.model.args["head"] == "pretraining"
    other = tmp_path / "other"
    other.mkdir()
    recipe = read_small_recipe("sentence-contrastive", other, "--model.pooling", "first")
    pooling = prepare_training(recipe, other / "run").model.pooling
    assert pooling is not None
    assert pooling.mode == "first"


def test_last_model_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    flags = (
        "--data.validation 0.2 --train.steps 5 --train.warmup_steps 0 --train.save_every 2 "
        "--train.keep_checkpoints 3 --train.average_last 3"
    )
    train_recipe(read_small_recipe("sequence-classification", tmp_path, *flags.split()))
    expected = average_checkpoints(
        path / "net.safetensors" for path in list_checkpoints(tmp_path / "run" / "checkpoints")
    )
    for name in ("last", "best"):  # evaluated only at the end
        model = qkv.load(tmp_path / "run" / name)
        compare.assert_bitwise_equal(
            dict(model.net.named_parameters()),
            expected,
            because="the same function adds the same weights in the same order",
        )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective.name", "mask"], r"objective\.name 'mask', expected one of causal-lm"),
        (["--objective.whole_wor", "true"], r"objective\.whole_wor: masked-lm has no such setting"),
        (["--data.max_length", "0"], r"data\.max_length 0, expected the number of tokens in a row"),
        (["--data.max_length", "2"], r"rows of 0 tokens without special tokens"),
        (["--data.batch_size", "0"], r"data\.batch_size or data\.batch_tokens is missing"),
        (
            ["--data.overflow", "error", "--data.max_length", "12"],
            r"train\.txt, line \d+: \d+ tokens, expected at most 10",
        ),
        (
            ["--data.overflow", "some"],
            r"data\.overflow is 'some', expected one of error, truncate, window",
        ),
        (
            ["--model.max_positions", "32"],
            r"data\.max_length 64, expected at most .* max_positions, 31",
        ),
        (
            ["--model.vocab_size", "50"],
            r"the tokenizer has \d+ tokens, but the model's vocab_size is 50",
        ),
        (["--tokenizer.template", "plain"], r"the tokenizer has no mask token"),
        (
            ["--objective.name", "sequence-classification"],
            r"train\.txt, line 1: no column 'label'; the columns are 'text'",
        ),
        (["--objective.name", "distillation"], r"objective\.teacher is missing"),
    ],
)
def test_errors_of_a_recipe_are_one_line(flags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        train_recipe(read_small_recipe("masked-lm", tmp_path, *flags))
    assert "\n" not in str(raised.value)


def test_decoder_start_token_is_that_of_the_family(tmp_path: Path) -> None:
    setup = prepare_training(read_small_recipe("denoising", tmp_path), tmp_path / "run")
    tokenizer = setup.model.tokenizer
    assert tokenizer is not None
    batch = setup.objective.collate(
        setup.sampler.fetch_examples(setup.sampler.get_batches(0)[0], 0, setup.objective.noise)
    )
    assert batch.decoder is not None
    assert batch.decoder.input_ids is not None
    assert {*batch.decoder.input_ids[:, 0].tolist()} == {tokenizer.eos_token_id}
    assert {*batch.decoder.input_ids[:, 1].tolist()} == {tokenizer.bos_token_id}


def test_batch_tokens(tmp_path: Path) -> None:
    for name in ("masked-lm", "next-sentence-prediction", "sequence-classification"):
        (tmp_path / name).mkdir()
        flags = ["--data.batch_size", "0", "--data.batch_tokens", "480"]
        setup = prepare_training(
            read_small_recipe(name, tmp_path / name, *flags), tmp_path / name / "run"
        )
        assert max(map(len, setup.sampler.get_batches(0))) >= 480 // 64
