"""Training and evaluation of small translation models on a TranslationCorpus."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.attention_weights import look
from qkv.batch import Batch
from qkv.data.batches.collate import Example
from qkv.decode import GenerationConfig, generate
from qkv.experiments.corpus import SentencePair, TranslationCorpus, cut_batches
from qkv.experiments.measures import CellContext
from qkv.experiments.training import (
    TrainingResult,
    build_cell_model,
    parse_train_config,
    train_network,
)
from qkv.kernels.attention import without_cudnn
from qkv.model.model import Model
from qkv.nn.network import Network
from qkv.tasks.alignment import Alignment, locate_source_tokens, locate_target_tokens
from qkv.train.evaluate.metrics import corpus_bleu
from qkv.train.objectives.objective import Objective, cross_entropy
from qkv.train.objectives.reinforce import prepare_hard_attention
from qkv.train.objectives.seq2seq import build_seq2seq_objective
from qkv.train.objectives.vocabulary import build_vocabulary_info

GENERATION_ROWS = 256  # texts that are translated at a time
CROSS_ATTENTION_PATHS = r"decoder(\.layers\.\d+)?\.cross_attention"


@dataclass(frozen=True, kw_only=True)
class Translator:
    """A trained model with its corpus, and what its training took."""

    corpus: TranslationCorpus
    model: Model
    objective: Objective
    result: TrainingResult
    seconds: float  # of training
    num_tokens: int  # target tokens of training

    @property
    def net(self) -> Network:
        assert isinstance(self.model.net, Network)
        return self.model.net

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    def build_batches(self, pairs: Sequence[SentencePair], batch_tokens: int) -> list[Batch]:
        """Return batches of texts, sorted by length."""
        examples = self.corpus.encode_pairs(pairs)
        return [
            self.objective.collate(rows).to(self.device)
            for rows in cut_batches(examples, batch_tokens)
        ]

    @torch.no_grad()
    def compute_loss(self, batches: Sequence[Batch]) -> float:
        """Return the mean cross-entropy of the references, in nats per token."""
        losses: list[Tensor] = []
        counts: list[int] = []
        for batch in batches:
            labels = batch.labels["labels"]
            losses.append(cross_entropy(self.net(batch)["logits"], labels))
            counts.append(int((labels >= 0).sum()))
        weights = torch.tensor(counts, dtype=torch.float64)
        return float((torch.stack(losses).double().cpu() * weights).sum() / weights.sum())

    def translate(self, sources: Sequence[str], max_new_tokens: int) -> list[str]:
        """Return translations by greedy search."""
        tokenizer = self.corpus.tokenizer
        ids = self.translate_ids([tokenizer.encode(text) for text in sources], max_new_tokens)
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    def translate_ids(
        self, sources: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[list[int]]:
        """Return the token ids of translations, with the end token."""
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=(self.corpus.eos_token_id,),
            decoder_start_token_id=self.model.args["decoder_start_token_id"],
        )
        results = generate(
            self.net, sources=sources, generation_config=config, batch_size=GENERATION_ROWS
        )
        return [best.token_ids for best, *_ in results]

    def compute_bleu(self, pairs: Sequence[SentencePair], max_new_tokens: int) -> float:
        """Return the BLEU of greedy translations (sacrebleu)."""
        texts = self.translate([pair.source for pair in pairs], max_new_tokens)
        return corpus_bleu(texts, [pair.target for pair in pairs]).value

    def align(self, source: str, target: str | None = None) -> Alignment:
        """Return the cross-attention between the words of a source and its translation, by the model
        or given. With several layers, it is the penultimate one; heads are averaged.

        The weights of a word are those of the steps that predict its tokens."""
        tokenizer = self.corpus.tokenizer
        encoding = tokenizer.encode_batch([source])[0]
        if target is None:
            target_ids = self.translate_ids([encoding.input_ids], 4 * len(encoding.input_ids))[0]
        else:
            target_ids = tokenizer.encode(target, is_target=True)
        example = {"source": np.array(encoding.input_ids), "target": np.array(target_ids)}
        weights = self.look([example], CROSS_ATTENTION_PATHS)
        layers = sorted(weights, key=lambda path: [int(i) for i in re.findall(r"\d+", path)])
        matrix = weights[layers[max(len(layers) - 2, 0)]][0].float().mean(0)  # (T, S)
        text = tokenizer.decode(target_ids, skip_special_tokens=True).strip()
        alignment = Alignment(
            locate_source_tokens(tokenizer, encoding, source, 0, ""),
            locate_target_tokens(tokenizer, target_ids, text),
            tuple(map(tuple, matrix.tolist())),
        )
        return alignment.merge_into_words()

    @torch.no_grad()
    def look(self, examples: Sequence[Example], paths: str) -> dict[str, Tensor]:
        """Return the attention weights (B, H, T, S) by path."""
        with look(self.net, paths) as weights:
            self.net(self.objective.collate(examples).to(self.device))
        return weights


def train_translator(
    context: CellContext,
    corpus: TranslationCorpus,
    *,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    objective: Mapping[str, Any],
    max_pairs: int,
    batch_tokens: int,
) -> Translator:
    """Train a new model on the corpus; the batches depend on the seed only.

    `objective` are the settings of REINFORCE for a model with hard attention."""
    tokenizer = corpus.tokenizer
    ids = {"vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.pad_token_id or 0}
    new_model = build_cell_model(context, {**ids, **model})
    net = new_model.net
    seq2seq = build_seq2seq_objective(build_vocabulary_info(tokenizer, new_model))
    seq2seq = prepare_hard_attention(seq2seq, net, objective)
    config = parse_train_config(train)
    batches = corpus.iter_batches(max_pairs=max_pairs, batch_tokens=batch_tokens, seed=context.seed)
    device = torch.device(context.device)
    is_bf16 = config.precision == "bf16"
    num_tokens = 0

    def compute_loss(step: int) -> Tensor:
        nonlocal num_tokens
        examples = next(batches)
        num_tokens += sum(len(example["target"]) for example in examples)
        with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
            return seq2seq(net(seq2seq.collate(examples).to(device)))

    start_time = time.perf_counter()
    with without_cudnn():  # batches have many shapes
        result = train_network(net, compute_loss, config)
    seconds = time.perf_counter() - start_time
    context.report(f"{context.name}: trained in {seconds:.0f} s")
    net.eval()
    return Translator(
        corpus=corpus,
        model=new_model,
        objective=seq2seq,
        result=result,
        seconds=seconds,
        num_tokens=num_tokens,
    )
