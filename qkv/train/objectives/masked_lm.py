"""Objectives of masked tokens: masked language modeling (BERT, RoBERTa), the same with a
sentence-pair task (BERT, ALBERT), replaced token detection (ELECTRA) and distillation
(DistilBERT)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.batches.collate import (
    Example,
    collate_inputs,
    collate_token_labels,
    get_attention_mask,
    pad_sequences,
    stack_values,
)
from qkv.data.noise.masking import choose_mask_positions, list_regular_token_ids, mask_tokens
from qkv.data.noise.sentence_pairs import sample_next_sentence_pairs, sample_sentence_order_pairs
from qkv.train.objectives.objective import (
    ExampleNoise,
    ForwardOutputs,
    Objective,
    count_valid_labels,
    cross_entropy,
    masked_mean,
    upcast_to_fp32,
)
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number

PAIR_TASKS = ("next", "order")


def build_masking_noise(
    objective_name: str,
    vocab: VocabularyInfo,
    *,
    mask_prob: float,
    mask_token_prob: float = 0.8,
    random_token_prob: float = 0.1,
    whole_word: bool = False,
    max_ngram: int = 1,
) -> ExampleNoise:
    """Return the noise function that masks tokens of an example and labels the chosen tokens."""
    if vocab.mask_token_id is None:
        raise ValueError(
            f"objective {objective_name}: the tokenizer has no mask token; "
            'tokenizer.template = "bert" trains one that has'
        )
    check_number("objective.mask_prob", mask_prob, more_than=0, less_than=1)
    check_number("objective.max_ngram", max_ngram, integer=True, at_least=1)
    check_number("objective.mask_token_prob", mask_token_prob, at_least=0, at_most=1)
    max_random_prob = round(1 - mask_token_prob, 9)  # in floating point, 1 - 0.9 is below 0.1
    check_number(
        "objective.random_token_prob", random_token_prob, at_least=0, at_most=max_random_prob
    )
    mask_token_id = vocab.mask_token_id
    regular_token_ids = list_regular_token_ids(vocab.vocab_size, vocab.special_token_ids)
    is_special = np.isin(np.arange(vocab.vocab_size), vocab.special_token_ids)

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        chosen = choose_mask_positions(
            is_special[tokens],
            rng,
            mask_prob=mask_prob,
            word_starts=example["starts"] > 0 if whole_word else None,
            max_ngram=max_ngram,
        )
        masked = mask_tokens(
            tokens,
            chosen,
            rng,
            mask_token_id=mask_token_id,
            regular_token_ids=regular_token_ids,
            mask_token_prob=mask_token_prob,
            random_token_prob=random_token_prob,
        )
        return {**example, "tokens": masked, "labels": np.where(chosen, tokens, IGNORE_INDEX)}

    return noise


def build_masked_lm_collate(
    vocab: VocabularyInfo, mask_prob: float
) -> Callable[[Sequence[Example]], Batch]:
    """Return a collate function whose batches request logits at the labeled tokens only.

    Batches of the same shape have the same number of logits."""

    def collate(examples: Sequence[Example]) -> Batch:
        max_length = max(len(example["tokens"]) for example in examples)
        return collate_token_labels(
            examples,
            pad_token_id=vocab.pad_token_id,
            pad_left=vocab.pad_left,
            min_labels=len(examples) * max(1, round(mask_prob * max_length)),
        )

    return collate


def build_masked_lm_objective(
    vocab: VocabularyInfo,
    *,
    mask_prob: float = 0.15,
    mask_token_prob: float = 0.8,
    random_token_prob: float = 0.1,
    whole_word: bool = False,
    max_ngram: int = 1,
) -> Objective:
    """Masked language modeling: predict a fraction `mask_prob` of the tokens, of which 80% are replaced
    by the mask token, 10% are replaced by a random token and 10% are unchanged (BERT).

    `whole_word` masks whole words; `max_ngram` is the maximum length of a masked span of words, 3 in
    ALBERT."""
    noise = build_masking_noise(
        "masked-lm",
        vocab,
        mask_prob=mask_prob,
        mask_token_prob=mask_token_prob,
        random_token_prob=random_token_prob,
        whole_word=whole_word,
        max_ngram=max_ngram,
    )
    return Objective(
        name="masked-lm",
        noise=noise,
        collate=build_masked_lm_collate(vocab, mask_prob),
        is_language_model=True,
    )


def build_masked_lm_sentence_pair_objective(
    vocab: VocabularyInfo,
    *,
    pair_task: str = "next",
    short_seq_prob: float = 0.1,
    mask_prob: float = 0.15,
    whole_word: bool = False,
    max_ngram: int = 1,
) -> Objective:
    """Masked language modeling in a pair of texts, with a classification of the pair.

    `pair_task`: "next" predicts whether the second text follows the first or is from another document
    (BERT); "order" predicts whether the two texts are swapped (ALBERT)."""
    if pair_task not in PAIR_TASKS:
        raise ValueError(
            f"objective.pair_task {pair_task!r}, expected one of {', '.join(PAIR_TASKS)}"
        )
    max_length = vocab.max_length - vocab.pair_template.num_special_tokens
    if max_length < 2:
        raise ValueError(
            f"data.max_length {vocab.max_length}, expected the length of a sentence pair, "
            f"at least {2 + vocab.pair_template.num_special_tokens}"
        )
    check_number("objective.short_seq_prob", short_seq_prob, at_least=0, at_most=1)
    mask_example = build_masking_noise(
        "masked-lm-sentence-pair",
        vocab,
        mask_prob=mask_prob,
        whole_word=whole_word,
        max_ngram=max_ngram,
    )

    def noise(example: Example, rng: np.random.Generator) -> Example:
        documents = example["documents"]
        number = example["number"]
        if pair_task == "next":
            pairs = sample_next_sentence_pairs(
                documents, number, rng, max_length=max_length, short_seq_prob=short_seq_prob
            )
        else:
            pairs = sample_sentence_order_pairs(
                documents[number], rng, max_length=max_length, short_seq_prob=short_seq_prob
            )
        segment_a, segment_b, label = pairs[example["turn"] % len(pairs)]
        template = vocab.pair_template
        pair_example = {
            "tokens": template.build_token_ids(segment_a, segment_b),
            "types": template.build_token_type_ids(segment_a, segment_b),
            "pair_label": label,
        }
        if whole_word:  # ids are 2 * id + starts_word, see data.batches.dataset.DocumentSentences
            pair_example["tokens"] = template.build_token_ids(segment_a >> 1, segment_b >> 1)
            pair_example["starts"] = template.build_token_ids(segment_a & 1, segment_b & 1)
        return mask_example(pair_example, rng)

    def collate(examples: Sequence[Example]) -> Batch:
        batch = build_masked_lm_collate(vocab, mask_prob)(examples)
        batch.labels["pair_label"] = stack_values(examples, "pair_label")
        return batch

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        return {
            "lm": cross_entropy(outputs["logits"], outputs["labels"]),
            "pair": cross_entropy(outputs["seq_relationship_logits"], outputs["pair_label"]),
        }

    def count_targets(batch: Batch) -> dict[str, int]:
        return {"lm": count_valid_labels(batch), "pair": len(batch.labels["pair_label"])}

    return Objective(
        name="masked-lm-sentence-pair",
        compute_losses=compute_losses,
        count_targets=count_targets,
        noise=noise,
        collate=collate,
    )


def build_replaced_token_detection_objective(
    vocab: VocabularyInfo, *, mask_prob: float = 0.15, discriminator_weight: float = 50.0
) -> Objective:
    """Replaced token detection: a generator fills masked tokens, a discriminator classifies every
    token as original or replaced (ELECTRA).

    The network is a `wrappers.GeneratorDiscriminator`. Of the chosen tokens, 85% are masked and the
    others are unchanged."""
    check_number("objective.discriminator_weight", discriminator_weight, at_least=0)

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        token_losses = F.binary_cross_entropy_with_logits(
            upcast_to_fp32(outputs["discriminator_logits"]),
            upcast_to_fp32(outputs["is_replaced"]),
            reduction="none",
        )  # (B, T)
        discriminator_loss = masked_mean(token_losses, outputs["attention_mask"])
        return {
            "lm": cross_entropy(outputs["logits"], outputs["labels"]),
            "replaced": discriminator_weight * discriminator_loss,
        }

    def count_targets(batch: Batch) -> dict[str, int]:
        return {
            "lm": count_valid_labels(batch),
            "replaced": int(batch.labels["attention_mask"].sum()),
        }

    noise = build_masking_noise(
        "replaced-token-detection",
        vocab,
        mask_prob=mask_prob,
        mask_token_prob=0.85,
        random_token_prob=0.0,
    )
    return Objective(
        name="replaced-token-detection",
        compute_losses=compute_losses,
        count_targets=count_targets,
        noise=noise,
        collate=partial(collate_with_attention_mask, build_masked_lm_collate(vocab, mask_prob)),
    )


def collate_with_attention_mask(
    collate: Callable[[Sequence[Example]], Batch], examples: Sequence[Example]
) -> Batch:
    """Collate examples and add the attention mask to the labels."""
    batch = collate(examples)
    assert batch.encoder is not None
    batch.labels["attention_mask"] = get_attention_mask(batch.encoder)
    return batch


def build_distillation_objective(
    vocab: VocabularyInfo,
    *,
    mask_prob: float = 0.15,
    temperature: float = 2.0,
    alpha_ce: float = 5.0,
    alpha_mlm: float = 2.0,
    alpha_cos: float = 1.0,
) -> Objective:
    """Knowledge distillation: the sum of the divergence from the teacher's distribution at every token
    (weight `alpha_ce`), the masked LM loss (`alpha_mlm`) and the cosine loss of the last hidden states
    (`alpha_cos`) (DistilBERT).

    The network is a `wrappers.StudentTeacher`."""

    def collate(examples: Sequence[Example]) -> Batch:
        inputs = collate_inputs(examples, pad_token_id=vocab.pad_token_id, pad_left=vocab.pad_left)
        labels = pad_sequences(
            [example["labels"] for example in examples], IGNORE_INDEX, pad_left=vocab.pad_left
        )
        return Batch(encoder=inputs, labels={"labels": labels})

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        mask = outputs["attention_mask"]
        student = (upcast_to_fp32(outputs["logits"]) / temperature).log_softmax(-1)
        teacher = (upcast_to_fp32(outputs["teacher_logits"]) / temperature).log_softmax(-1)
        divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)  # (B, T)
        cosine = F.cosine_similarity(
            upcast_to_fp32(outputs["last_hidden_state"]),
            upcast_to_fp32(outputs["teacher_last_hidden_state"]),
            dim=-1,
        )  # (B, T)
        return {
            "soft": alpha_ce * temperature**2 * masked_mean(divergence, mask),
            "lm": alpha_mlm * cross_entropy(outputs["logits"], outputs["labels"]),
            "cosine": alpha_cos * masked_mean(1 - cosine, mask),
        }

    def count_targets(batch: Batch) -> dict[str, int]:
        num_tokens = int(batch.labels["attention_mask"].sum())
        return {"soft": num_tokens, "lm": count_valid_labels(batch), "cosine": num_tokens}

    check_number("objective.temperature", temperature, more_than=0)
    return Objective(
        name="distillation",
        compute_losses=compute_losses,
        count_targets=count_targets,
        noise=build_masking_noise("distillation", vocab, mask_prob=mask_prob),
        collate=partial(collate_with_attention_mask, collate),
    )
