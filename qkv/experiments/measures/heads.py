"""What the heads of a translation model attend to, and what removing each of them costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.attention_weights import look
from qkv.batch import Batch
from qkv.experiments.measures import CellContext
from qkv.experiments.measures.translation import (
    SentencePair,
    TrainedTranslation,
    train_translation,
    translate_rows,
)
from qkv.experiments.measures.word_alignment import AlignmentModel
from qkv.experiments.table import Measurement
from qkv.experiments.training import count_parameters
from qkv.model.model import Model
from qkv.nn.attention import Attention
from qkv.staging import write_file
from qkv.tasks.cross_attention import build_padded_inputs
from qkv.train.evaluate.metrics import corpus_bleu
from qkv.view.pictures import render_attention_svg

NUM_ALIGNMENT_PAIRS = 20_000
MIN_SHARE = 0.5  # of the tokens whose largest weight is at a place, for a head to be counted


class EncodedPair(NamedTuple):
    source: list[int]
    decoder: list[int]  # the start token and the target without its last token
    target: list[int]


class HeadProfile(NamedTuple):
    """Where the largest weight of a head is, as shares of its queries, and the cost of its removal."""

    path: str
    head: int
    previous: float
    same: float
    aligned: float
    cost: float


def measure_heads(
    context: CellContext,
    *,
    pairs: str,
    recipe: Mapping[str, Any],
    num_test: int = 500,
    num_profiled: int = 200,
    pictures: Sequence[str] = (),
) -> Measurement:
    """Train a translation model, and measure BLEU and the profile of every head on test sentences.

    A head is counted as looking at a place (the previous token, the same word, the aligned source
    word) if its largest weight is there for more than half of the tokens. The cost of a head is the
    increase of the loss, in nats per token, if its output is zero. `pictures` are sources for which
    the heads with the largest shares are drawn."""
    trained = train_translation(
        context, pairs=pairs, recipe=recipe, max_pairs=1, num_train=0, num_test=num_test
    )
    rows = trained.test_rows
    translations, _ = translate_rows(trained.model, rows, num_beams=1)
    bleu = corpus_bleu(translations, [row.target for row in rows])
    encoded = [encode_pair(trained.model, row) for row in rows[:num_profiled]]
    loss = compute_loss(trained.model, encoded)
    profiles = profile_heads(trained, encoded, loss)
    for number, text in enumerate(pictures):
        draw_heads(context, trained.model, profiles, SentencePair(text, ""), number)
    cross = [profile for profile in profiles if profile.path.endswith("cross_attention")]
    own = [profile for profile in profiles if not profile.path.endswith("cross_attention")]
    costs = [profile.cost for profile in profiles]
    metrics = {
        "bleu": bleu.value,
        "loss": loss,
        "share_previous": compute_share([profile.previous for profile in own]),
        "share_same": compute_share([profile.same for profile in own]),
        "share_aligned": compute_share([profile.aligned for profile in cross]),
        "mean_cost": sum(costs) / len(costs),
        "max_cost": max(costs),
        "share_free": sum(cost < 0.01 for cost in costs) / len(costs),
        "num_parameters": count_parameters(trained.model.net),
        **trained.metrics,
    }
    return Measurement(metrics=metrics, points=tuple(profile._asdict() for profile in profiles))


def compute_share(values: Sequence[float]) -> float:
    return sum(value > MIN_SHARE for value in values) / max(len(values), 1)


def encode_pair(model: Model, pair: SentencePair) -> EncodedPair:
    """Encode a pair as in training: the decoder reads the start token before the target."""
    assert model.tokenizer is not None
    source = list(model.tokenizer.encode(pair.source))
    target = list(model.tokenizer.encode(pair.target))
    start = int(model.args["decoder_start_token_id"])
    return EncodedPair(source=source, decoder=[start, *target[:-1]], target=target)


def build_batch(pairs: Sequence[EncodedPair], device: torch.device | str) -> Batch:
    encoder = build_padded_inputs([pair.source for pair in pairs])
    decoder = build_padded_inputs([pair.decoder for pair in pairs])
    return Batch(encoder=encoder, decoder=decoder).to(device)


@torch.no_grad()
def compute_loss(model: Model, pairs: Sequence[EncodedPair]) -> float:
    """Return the mean loss of the target tokens."""
    logits = model.net(build_batch(pairs, model.device))["logits"].float()
    labels = [F.pad(torch.tensor(pair.target), (0, logits.shape[1] - len(pair.target)), value=-100)
              for pair in pairs]  # fmt: skip
    return float(F.cross_entropy(logits.transpose(1, 2), torch.stack(labels).to(logits.device)))


@torch.no_grad()
def profile_heads(
    trained: TrainedTranslation, pairs: Sequence[EncodedPair], loss: float
) -> list[HeadProfile]:
    """Return the profile of every head of every attention."""
    model = trained.model
    training = [encode_pair(model, pair) for pair in trained.train_pairs[:: max(
        1, len(trained.train_pairs) // NUM_ALIGNMENT_PAIRS)]]  # fmt: skip
    alignment_model = AlignmentModel([(pair.source, pair.target) for pair in training])
    alignments = [alignment_model.align(pair.source, pair.target) for pair in pairs]
    with look(model) as weights:
        model.net(build_batch(pairs, model.device))
    profiles = []
    for path, tensor in weights.items():
        best = tensor.argmax(-1).cpu()  # (B, H, T)
        for head in range(best.shape[1]):
            shares = compute_places(path, best[:, head], pairs, alignments)
            with remove_head(model, path, head):
                cost = compute_loss(model, pairs) - loss
            profiles.append(HeadProfile(path, head, *shares, cost))
    return profiles


def compute_places(
    path: str,
    best: Tensor,
    pairs: Sequence[EncodedPair],
    alignments: Sequence[Sequence[int | None]],
) -> tuple[float, float, float]:
    """Return the shares of queries whose best key (B, T) is the previous token, a token of the same
    word, and the aligned source token; of cross-attention only the last."""
    previous = same = aligned = total = 0
    for row, pair, alignment in zip(best.tolist(), pairs, alignments, strict=True):
        if path.endswith("cross_attention"):
            known = [
                (key, place)
                for key, place in zip(row, alignment, strict=False)
                if place is not None
            ]
            aligned += sum(key == place for key, place in known)
            total += len(known)
            continue
        ids = pair.source if path.startswith("encoder") else pair.decoder
        for query, key in enumerate(row[: len(ids)]):
            previous += query > 0 and key == query - 1
            same += ids[min(key, len(ids) - 1)] == ids[query]
        total += len(ids)
    total = max(total, 1)
    return previous / total, same / total, aligned / total


@contextmanager
def remove_head(model: Model, path: str, head: int) -> Iterator[None]:
    """Set the output of a head to zero: its columns of the output projection."""
    attention = model.net.get_submodule(path)
    assert isinstance(attention, Attention)
    weight = attention.o.weight
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    original = weight.data[:, columns].clone()
    weight.data[:, columns] = 0
    try:
        yield
    finally:
        weight.data[:, columns] = original


def draw_heads(
    context: CellContext,
    model: Model,
    profiles: Sequence[HeadProfile],
    pair: SentencePair,
    number: int,
) -> None:
    """Draw the encoder head that looks most at the previous token, and the one at the same word."""
    assert model.tokenizer is not None
    encoded = encode_pair(model, pair)
    tokens = model.tokenizer.convert_ids_to_tokens(encoded.source)
    with look(model, r"encoder\..*") as weights, torch.no_grad():
        model.net(build_batch([encoded], model.device))
    encoder = [profile for profile in profiles if profile.path in weights]
    context.results.mkdir(parents=True, exist_ok=True)
    for place in ("previous", "same"):
        best = max(encoder, key=lambda profile: getattr(profile, place))
        matrix = weights[best.path][0, best.head].tolist()
        svg = render_attention_svg(f"“{pair.source}”", matrix, tokens, tokens, best.path, best.head)
        with write_file(context.results / f"{context.name}-{place}-{number}.svg") as temporary:
            temporary.write_text(svg, encoding="utf-8")
