"""Breaks the core in single ways, runs fast tests against each, and says how many were noticed.

A mutant is one text of one file put in place of another, in a copy. First the tests named in the table run on
an unbroken copy, where all of them must pass. Then each mutant meets the tests named beside it, and, if these
pass, a wider selection. It is caught when a test fails; not when nothing runs at all.
"""

import argparse
import ast
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("qkv", "tests", "tools", "pyproject.toml")
OPTIONS = "-x -q -n 0 -p no:cacheprovider --tb=no -rfE -W ignore::pytest.PytestAssertRewriteWarning".split()
LIMIT, WIDE_LIMIT = 120, 300  # seconds
TOO_LONG, NOT_RUN = 124, 70  # exit statuses beside pytest's
# Where a mutant goes that the tests beside it let pass.
WIDE = """
    nn/patterns nn/packed model/positions nn/cache families/original families/xl families/parity families/names
    model/build
""".split()
# What a broken core does not do: it computes something else.
ACCIDENT = r"(Name|UnboundLocal|Import|ModuleNotFound|Syntax|Attribute|Type)Error"
# Imported once, where all other processes are forked from: nothing of ours. The last takes long.
PRELOADED = ["pytest", "numpy", "torch", "safetensors.torch", "transformers.modeling_utils"]


class Mutant(NamedTuple):
    name: str
    file: str  # below qkv/
    old: str  # stands in the file once
    new: str
    tests: str  # those that should notice: `folder/file:test[case]` without `test_`, or a case of the parity tests


# fmt: off
TABLE = [Mutant(*row) for row in (
    # who sees whom
    ("causal-less-one", "spec.py", "return j <= i", "return j < i", "nn/patterns:rule[causal]"),
    ("banded-one-more", "spec.py", "i - j < self.width", "i - j <= self.width", "nn/patterns:rule[banded]"),
    ("local-less-one", "spec.py", "(i - j <= self.width)", "(i - j < self.width)", "nn/patterns:rule[local]"),
    ("strided-next", "spec.py", "(i - j) % self.stride == 0", "(i - j) % self.stride == 1",
     "nn/patterns:rule[strided]"),
    ("chunk-slides", "spec.py", "i // self.stride == j // self.stride", "(i - j) // self.stride == 0",
     "nn/patterns:rule[chunk]"),
    ("summary-fewer-cells", "spec.py", "j % self.stride >= self.stride", "j % self.stride > self.stride",
     "nn/patterns:rule[summary]"),
    ("prefix-one-more", "spec.py", "(j < self.length)", "(j <= self.length)", "nn/patterns:rule[prefix]"),
    ("recent-less-one", "spec.py", "Banded(memory + 1)", "Banded(memory)", "xlnet-XLNetModel-length"),
    ("both-is-either", "spec.py", "self.one(i, j) & self.two(i, j)", "self.one(i, j) | self.two(i, j)",
     "nn/patterns:rule[and]"),
    ("patterns-not-in-turn", "spec.py", "patterns[i % len(patterns)]", "patterns[0]",
     "nn/patterns:model_equals_dense_masks[gpt3-37-plain]"),
    ("seat-ignored", "kernels/bias.py", "(keys >= 0)", "(keys >= -1)",
     "model/positions:a_padded_row_equals_it_alone[bert-learned]"),
    ("document-ignored", "kernels/bias.py", "(mine == theirs)", "(mine == mine)",
     "nn/packed:a_packed_document_equals_it_alone[bert]"),
    ("memory-of-no-document", "kernels/bias.py", " | (theirs < 0)", "",
     "nn/packed:all_documents_of_a_row_see_its_memory[xlnet]"),
    ("mask-forgotten-by-kernel", "kernels/bias.py", "open_ and self.full and", "open_ and",
     "model/positions:a_padded_row_equals_it_alone[bert-learned]"),
    ("permutation-ignored", "kernels/bias.py", "mask & self.allowed[:, None]", "mask",
     "xlnet-XLNetLMHeadModel-permute"),
    ("distance-not-added", "kernels/bias.py", "self.fill(self.distance)", "self.fill(None)",
     "model/positions:t5_buckets"),
    ("mask-soft", "kernels/bias.py", "least(scores.dtype)", "-8.0",
     "nn/patterns:nobody_sees_what_comes_later[gpt3]"),

    # few keys
    ("blocks-never", "kernels/bias.py", ">= 256", ">= 1 << 40",
     "nn/patterns:no_square_tensor[strided-merged-plain]"),
    ("blocks-narrow", "kernels/block_sparse.py", "-width, size", "1 - width, size",
     "nn/patterns:kernel_equals_dense_attention[36-local-plain]"),
    ("blocks-not-ahead", "kernels/block_sparse.py", "ahead = width if", "ahead = 0 if",
     "nn/patterns:kernel_equals_dense_attention[36-local-plain]"),
    ("blocks-cut-short", "kernels/block_sparse.py", "-(-length // stride), step", "length // stride, step",
     "nn/patterns:kernel_equals_dense_attention[36-strided-plain]"),
    ("blocks-counted-twice", "kernels/block_sparse.py", "piece.before + seen", "piece.before",
     "nn/patterns:kernel_equals_dense_attention[36-merged-plain]"),
    ("blocks-past-the-row", "kernels/block_sparse.py", "(piece.k >= 0) & ", "",
     "nn/patterns:kernel_equals_dense_attention[36-banded-plain]"),
    ("blocks-cells-of-pads", "kernels/block_sparse.py", "(positions >= 0) & ", "",
     "nn/patterns:model_equals_dense_masks[fixed-merged-256-left]"),
    ("blocks-fewer-cells", "kernels/block_sparse.py", "% stride >= stride - cells", "% stride > stride - cells",
     "nn/patterns:kernel_equals_dense_attention[36-fixed-plain]"),
    ("blocks-apart", "kernels/block_sparse.py", "in (one, its[..., None]))", "in (one, 0 * its[..., None]))",
     "nn/patterns:kernel_equals_dense_attention[36-merged-plain]"),
    ("blocks-lost-weigh", "kernels/block_sparse.py", "least(q.dtype) / 2, torch.inf)", "2 * least(q.dtype), 0)",
     "nn/patterns:kernel_equals_dense_attention[83-merged-left]"),
    ("blocks-own-slope", "kernels/partial_attention.py", "- (grad * out).sum(-1, keepdim=True)) * scale", ") * scale",
     "nn/patterns:the_kernel_equals_its_plain_reference"),
    ("blocks-drop-anew", "kernels/partial_attention.py", "stays = kept[0] / (1 - drop) if drop else 1.0", "stays = 1.0",
     "nn/patterns:what_drops_is_the_same_on_the_way_back[merged]"),
    ("by-head-out-of-order", "kernels/block_sparse.py", "device=q.device).argsort()", "device=q.device)",
     "nn/caught_mutants:every_head_keeps_its_pattern"),

    # rows and positions
    ("pads-counted", "batch.py", "count = stands.cumsum(1)", "count = torch.ones_like(stands).cumsum(1)",
     "model/positions:a_padded_row_equals_it_alone[bert-learned]"),
    ("documents-counted-through", "batch.py", "(count - stands.long()) * starts", "(count * 0) * starts",
     "nn/packed:a_packed_document_equals_it_alone[gpt2]"),
    ("empty-seat-has-a-position", "batch.py", "self.positions.masked_fill(~self.seat, -1)", "self.positions",
     "model/positions:a_padded_row_equals_it_alone[bert-learned]"),
    ("holes-are-even", "batch.py", "even = seat is None or", "even = True or",
     "nn/caught_mutants:a_hole_in_a_row_is_no_distance"),
    ("reach-less-one", "batch.py", "reach = length - 1", "reach = length - 2", "model/positions:xl_scores[bert]"),
    ("reach-of-given-positions", "batch.py", "int(positions.max())", "length - 1",
     "nn/caught_mutants:given_positions_may_lie_far_apart"),
    ("given-positions-shifted", "nn/transformer.py", "len(past) and rows.counted", "len(past)",
     "nn/caught_mutants:given_positions_stay_as_they_are_beside_a_memory"),
    ("steps-count-empty-seats", "nn/cache.py", "self.positions.amax(dim=1, keepdim=True) + 1",
     "0 * self.positions[:, :1] + len(self)", "nn/cache:ragged_prompts[left-gpt2]"),
    ("offset-missing", "nn/embedding.py", "rows.positions + embed.positions.offset", "rows.positions",
     "roberta-RobertaModel"),
    ("offset-of-the-pad", "families/bert.py", "(pad or 0) + 1 if", "(pad or 0) if", "roberta-RobertaModel"),
    ("sinusoid-cosine-first", "nn/embedding.py", "[angles.sin(), angles.cos()]", "[angles.cos(), angles.sin()]",
     "families/original:numbers[after-none-fp32]"),
    ("sinusoid-not-in-pairs", "nn/embedding.py", 'if layout == "pairs"', 'if layout == "twos"',
     "families/original:numbers[after-none-fp32]"),

    # distance
    ("bucket-sign", "nn/relative_position.py", "torch.where(ahead > 0, count, 0)", "torch.where(ahead < 0, count, 0)",
     "model/positions:t5_buckets"),
    ("bucket-next", "nn/relative_position.py", "near = count // 2", "near = count // 2 + 1", "model/positions:t5_buckets"),
    ("bucket-one-way", "nn/relative_position.py", "if self.buckets.both_ways:", "if False:", "model/positions:t5_buckets"),
    ("bucket-one-less", "nn/relative_position.py", "clamp(max=count - 1)", "clamp(max=count - 2)",
     "model/positions:t5_buckets"),
    ("bucket-both-ways", "families/t5.py", "both_ways=False", "both_ways=True", "t5-T5Model"),
    ("bucket-both-ways-swapped", "model/transforms/positions.py", "isinstance(first.pattern, Everyone | Local)", "True",
     "nn/caught_mutants:buckets_of_a_writer_look_back_only"),
    ("alibi-slope", "nn/relative_position.py", "torch.arange(1, self.heads + 1,", "torch.arange(0, self.heads,",
     "model/positions:alibi_slopes"),
    ("alibi-later-slopes", "nn/relative_position.py", "self.even - 0.5", "self.even",
     "model/positions:alibi_slopes"),
    ("rotary-sign", "nn/relative_position.py", "a * cos - b * sin, b * cos + a * sin",
     "a * cos + b * sin, b * cos - a * sin", "model/positions:rotary_turns_complex_numbers"),
    ("rotary-base", "nn/relative_position.py", "self.rotary.base **", "10000.0 **",
     "model/positions:rotary_turns_complex_numbers[500000.0]"),
    ("rotary-keys-unturned", "nn/attention.py", "self.rotate(k, new)", "k",
     "model/positions:rotary_turns_queries_and_keys[gpt2]"),
    ("rotary-stretch", "nn/relative_position.py", 'rates / scaling.get("factor", 1)', 'rates * scaling.get("factor", 1)',
     "llama-LlamaModel-linear"),
    ("xl-clamp", "nn/relative_position.py", "self.xl.clamp > 0", "self.xl.clamp > 1 << 30",
     "nn/caught_mutants:distances_beyond_the_clamp_are_alike"),
    ("xl-u-for-v", "nn/relative_position.py", "(q + self.v[:, None]) @ r", "(q + self.u[:, None]) @ r",
     "model/positions:xl_scores[gpt2]"),
    ("xl-sign", "nn/relative_position.py", "where.q[:, :, None] - where.k[:, None, :]",
     "where.k[:, None, :] - where.q[:, :, None]", "nn/caught_mutants:a_shift_is_what_a_gather_finds"),
    ("xl-shift", "nn/relative_position.py", "torch.arange(reach, low - 1, -1,", "torch.arange(low, reach + 1, 1,",
     "model/positions:xl_scores[bert]"),
    ("xl-unscaled", "nn/relative_position.py", "extra * self.scale", "extra", "model/positions:xl_scores[gpt2]"),
    ("xl-biases-shared", "nn/transformer.py", " and first.xl.shared", "", "families/xl:numbers[xl-base]"),
    ("segment-index", "nn/relative_position.py", "e[..., 1:], e[..., :1]", "e[..., :1], e[..., 1:]",
     "xlnet-XLNetLMHeadModel-clamp"),

    # attention
    ("keys-for-values", "nn/attention.py", "in (self.k, self.v)", "in (self.v, self.k)",
     "families/original:numbers[after-none-fp32]"),
    ("unscaled", "kernels/attention.py", '== "causal", scale=scale', '== "causal", scale=1.0',
     "families/original:numbers[after-none-fp32]"),
    ("scale-not-a-root", "nn/attention.py", "1 / math.sqrt(attend.head_dim)", "1 / attend.head_dim",
     "families/original:numbers[after-none-fp32]"),
    ("grouped-heads-in-turn", "kernels/attention.py", "x.repeat_interleave(heads // x.shape[1], dim=1)",
     "x.repeat(1, heads // x.shape[1], 1, 1)", "llama-LlamaForCausalLM-keys"),
    ("drops-in-use", "nn/attention.py", "self.drop if self.training else 0.0", "self.drop",
     "model/build:drops_in_training_alone[bert]"),
    ("scale-by-layer", "families/gpt2.py", "(i + 1 if", "(i + 2 if", "gpt2-GPT2LMHeadModel-inverse"),
    ("t5-scaled", "families/t5.py", "bias=False, scale=1.0", "bias=False", "t5-T5Model"),
    ("window-both-sides", "families/modernbert.py", "s.Local(window // 2)", "s.Local(window)",
     "modernbert-ModernBertModel"),

    # feeds
    ("gelu-erf", "nn/embedding.py", 'approximate="tanh"', 'approximate="none"',
     "nn/patterns:model_equals_dense_masks[gpt3-37-plain]"),
    ("gelu-tanh", "nn/embedding.py", '"gelu": F.gelu', '"gelu": tanh_gelu', "bert-BertModel"),
    ("silu-is-mish", "nn/embedding.py", '"silu": F.silu', '"silu": F.mish', "bert-BertModel-keys"),
    ("quick-gelu", "nn/embedding.py", "1.702", "1.7", "clip-CLIPTextModel"),
    ("t5-gated-erf", "families/t5.py", 'act = "gelu_new" if', 'act = "gelu" if',
     "t5-T5ForConditionalGeneration-gated"),
    ("gpt-gelu-erf", "families/gpt.py", '{"afn": "gelu_new"} if', '{"afn": "gelu"} if',
     "openai-OpenAIGPTModel"),
    ("gate-on-the-other-side", "nn/feed_forward.py", "self.act(self.gate(x)) * self.up(x)",
     "self.gate(x) * self.act(self.up(x))", "llama-LlamaModel"),
    ("router-sigmoid", "nn/feed_forward.py", "logits.softmax(-1).to", "logits.sigmoid().to",
     "switch_transformers-SwitchTransformersEncoderModel"),
    ("jitter-in-use", "nn/feed_forward.py", "self.training and self.jitter", "self.jitter",
     "model/build:drops_in_training_alone[switch]"),
    ("router-share-left-out", "nn/feed_forward.py", "(share * kept)", "kept",
     "switch_transformers-SwitchTransformersEncoderModel"),
    ("capacity-one-more", "nn/feed_forward.py", "min(self.capacity,", "min(self.capacity + 1,",
     "switch_transformers-SwitchTransformersForConditionalGeneration-overflow"),
    ("overflow-let-through", "nn/feed_forward.py", "(share * kept)[", "share[",
     "switch_transformers-SwitchTransformersForConditionalGeneration-overflow"),
    ("balance-not-by-experts", "nn/feed_forward.py", "* count**2", "* count", "nn/caught_mutants:router_losses_are_the_papers"),
    ("z-loss-not-squared", "nn/feed_forward.py", ".logsumexp(-1).square()", ".logsumexp(-1)",
     "nn/caught_mutants:router_losses_are_the_papers"),
    ("experts-one-layer-early", "families/switch.py", "i % step == 1", "i % step == 0",
     "switch_transformers-SwitchTransformersEncoderModel"),

    # norms and residuals
    ("epsilon", "nn/embedding.py", "eps=norm.eps", "eps=1e-5", "bert-BertModel-keys"),
    ("rms-centred", "nn/embedding.py", "nn.RMSNorm if", "partial(nn.LayerNorm, bias=False) if",
     "llama-LlamaModel"),
    ("epsilon-of-the-inner-norms", "families/gpt2.py", "eps=inner_eps or eps", "eps=eps",
     "ctrl-CTRLModel-keys"),
    ("norm-side", "nn/transformer.py", "self.after_attend(x + ", "self.after_attend(y + ",
     "families/original:numbers[before-none-fp32]"),
    ("norm-skipped", "nn/transformer.py", "self.before_feed(x)", "x", "families/original:numbers[before-none-fp32]"),
    ("final-norm-missing", "nn/transformer.py", "self.drop(self.norm(x))", "self.drop(x)",
     "families/original:numbers[final-none-fp32]"),
    ("residual-dropped", "nn/transformer.py", "self.after_feed(x + self.drop(y))", "self.after_feed(self.drop(y))",
     "families/original:numbers[after-none-fp32]"),

    # embeddings
    ("embedding-scale", "nn/embedding.py", "x * embed.scale if", "x if", "families/original:numbers[after-none-fp32]"),
    ("given-vectors-scaled", "nn/embedding.py", "rows.embeds is None or embed.scales_given", "True",
     "nn/caught_mutants:given_vectors_are_scaled_where_the_original_does"),
    ("given-vectors-unscaled", "families/gpt2.py", ", scales_given=True", "",
     "families/parity:numbers[ctrl-CTRLModel-embeds-fp32]"),
    ("types-default", "nn/embedding.py", "self.types.weight[0]", "self.types.weight[-1]",
     "nn/caught_mutants:types_left_out_are_the_first"),
    ("types-unscaled", "nn/embedding.py", "self.tokens(rows.types) * embed.scale", "self.tokens(rows.types)",
     "ctrl-CTRLModel-keys"),
    ("pad-learns", "nn/embedding.py", "padding_idx=embed.pad", "padding_idx=None",
     "nn/caught_mutants:a_pad_learns_nothing_from_being_looked_up"),
    ("class-token-last", "nn/embedding.py", "[self.first.expand(len(grid), 1, -1), grid]",
     "[grid, self.first.expand(len(grid), 1, -1)]", "clip-CLIPVisionModel"),
    ("adaptive-edge", "nn/embedding.py", "(ids >= low)", "(ids > low)", "families/xl:numbers[xl-base]"),
    ("adaptive-unscaled", "nn/embedding.py", "self.scale = math.sqrt(width)", "self.scale = 1.0",
     "families/xl:numbers[xl-base]"),
    ("vocabularies-shared", "nn/transformer.py", "self.encoder and self.decoder and spec.shared",
     "self.encoder and self.decoder", "families/original:numbers[two-none-fp32]"),

    # depth
    ("albert-order", "families/bert.py", "int(i / (depth / groups)) * inner", "(i % groups) * inner",
     "albert-AlbertModel-groups"),

    # memory and recurrence
    ("slot-forgets-positions", "nn/cache.py", "torch.cat([self.positions, positions], dim=1)",
     "torch.cat([self.positions, 0 * positions], dim=1)", "nn/cache:one_at_a_time[gpt2]"),
    ("slot-swaps-keys-and-values", "nn/attention.py", 'slot.read("k"), slot.read("v")',
     'slot.read("v"), slot.read("k")', "nn/cache:one_at_a_time[gpt2]"),
    ("slot-select-sorts", "nn/cache.py", "x[rows]", "x[rows.sort().values]", "nn/cache:rows_leave[gpt2]"),
    ("slot-cut-less-one", "nn/cache.py", "seats > lengths[:, None]", "seats >= lengths[:, None]",
     "nn/cache:rows_go_back[gpt2]"),
    ("slot-keeps-one-more", "nn/cache.py", "len(self) - count, 0", "len(self) - count - 1, 0",
     "nn/cache:the_last_seats_are_enough_for_a_band"),
    ("slot-admits-seats", "nn/cache.py", "other.positions, length, -1", "other.positions, length, 0",
     "nn/cache:rows_join[shorter-gpt2]"),
    ("remembered-pads-seen", "nn/transformer.py", "(past.positions is None or past.full)",
     "True", "nn/cache:ragged_prompts[left-gpt2]"),
    ("memory-not-normed", "nn/transformer.py", "else self.before_attend(seen)", "else seen",
     "families/xl:numbers[xl-prenorm]"),
    ("memory-not-detached", "nn/transformer.py", ".detach()", "", "families/xl:numbers[xl-base]"),
    ("memory-one-more", "nn/transformer.py", "seen.shape[1] - (recall.length or 0)",
     "seen.shape[1] - (recall.length or 0) - 1", "families/xl:numbers[xl-base]"),
    ("memory-reuse", "nn/transformer.py", "- fresh + recall.reuse]", "- fresh + recall.reuse + 1]",
     "xlnet-XLNetModel-memory"),
    ("memory-not-of-zeros", "nn/transformer.py", "recall and recall.zeros and", "False and", "families/xl:numbers[xl-base]"),
    ("memory-of-another-type", "nn/transformer.py", "pair(rows.types, 0)", "pair(rows.types, 1)",
     "xlnet-XLNetModel-memory"),
    ("memory-unseen", "nn/transformer.py", "allowed.new_ones", "allowed.new_zeros", "xlnet-XLNetLMHeadModel-both"),

    # the decoder's source, two streams, two towers
    ("cross-sees-pads", "nn/transformer.py", "full=source.seat is None", "full=True",
     "model/positions:a_padded_row_equals_it_alone[bart-learned]"),
    ("cross-sees-other-documents", "nn/transformer.py", "documents=both", "documents=None",
     "nn/packed:a_packed_document_equals_it_alone[bart]"),
    ("cross-remembers-pads-as-seats", "nn/transformer.py", "k=past.positions, full=past.full",
     "k=past.positions, full=True", "nn/cache:one_at_a_time[bart]"),
    ("query-stream-positions", "nn/transformer.py", "x.gather(1, targets)", "x[:, : targets.shape[1]]",
     "xlnet-XLNetLMHeadModel-permute"),
    ("query-stream-sees-itself", "model/inputs.py", "query = allowed.gather", "query = content.gather",
     "xlnet-XLNetLMHeadModel-permute"),
    ("permuted-token-unseen-by-itself", "model/inputs.py", "allowed | torch.eye(", "allowed & ~torch.eye(",
     "xlnet-XLNetLMHeadModel-permute"),
    ("clip-not-normalised", "nn/transformer.py", "F.normalize(out[name], dim=-1)", "out[name]", "clip-CLIPModel"),
    ("clip-temperature", "nn/transformer.py", "self.temperature.exp()", "self.temperature", "clip-CLIPModel"),
    ("clip-other-way-round", "nn/transformer.py", 'out["scaled"] @ out["text"].T', 'out["text"] @ out["scaled"].T',
     "clip-CLIPModel"),
    ("shift-does-not-wrap", "model/inputs.py", 'if how == "wrap"', 'if how == "round"', "mbart-MBartModel-shift"),
    ("shift-over-pads", "model/inputs.py", "seat & (seat.cumsum(1) == 1)", "torch.ones_like(seat).cumsum(1) == 1",
     "families/parity:padded_row_equals_row_alone[mbart-MBartModel-shift]"),

    # heads
    ("head-scale", "nn/heads.py", " * self.head.scale", "", "t5-T5ForConditionalGeneration"),
    ("head-scale-of-mt5", "families/t5.py", "scaled and not multilingual", "scaled",
     "mt5-MT5ForConditionalGeneration"),
    ("head-norm-before-act", "nn/heads.py", "self.norm(self.act(self.dense(x)))",
     "self.act(self.norm(self.dense(x)))", "bert-BertForMaskedLM"),
    ("head-untied", "nn/heads.py", "self.out.weight = tokens.weight",
     "self.out.weight = nn.Parameter(tokens.weight.detach().clone())", "bert-BertForMaskedLM"),
    ("logits-bias-missing", "families/bart.py", 'Literal["fixed"] = "fixed"', 'Literal["fixed"] = False',
     "bart-BartForConditionalGeneration"),
    ("logits-bias-learns", "nn/heads.py", "bias.requires_grad_(False)", "bias.requires_grad_(True)",
     "nn/caught_mutants:a_fixed_bias_is_never_trained"),
    ("takes-first-column", "nn/heads.py", "pick(hidden, seat.int().argmax(1))", "hidden[:, 0]",
     "families/parity:padded_row_equals_row_alone[bert-BertModel]"),
    ("takes-last-column", "nn/heads.py", "pick(hidden, last(seat))", "hidden[:, -1]",
     "families/parity:numbers[gpt2-GPT2ForSequenceClassification-right-fp32]"),
    ("mean-of-pads", "nn/heads.py", "(hidden * seat[..., None]).sum(1)", "hidden.sum(1)",
     "families/parity:padded_row_equals_row_alone[modernbert-ModernBertForSequenceClassification-mean]"),
    ("mean-of-the-class-token", "nn/heads.py", "hidden[:, 1:].mean(1)", "hidden.mean(1)",
     "clip-CLIPForImageClassification"),
    ("takes-first-of-ends", "nn/heads.py", "else last(ends)", "else ends.int().argmax(1)",
     "nn/caught_mutants:a_text_is_read_at_its_last_end"),
    ("takes-last-of-ends", "nn/heads.py", 'if head.take == "first end"', 'if head.take == "end"',
     "clip-CLIPTextModel"),
    ("end-by-the-highest-id", "families/clip.py", 'if t["end"] == 2', 'if t["end"] == -2',
     "clip-CLIPTextModel-highest"),
    ("cluster-column", "nn/heads.py", "self.edges[1] + i - 1, None]", "self.edges[1] + i - 2, None]",
     "families/xl:numbers[xl-base]"),
    ("adaptive-projects-tied", "nn/heads.py", "if head.tied_projects[band]", "if True",
     "families/xl:numbers[xl-base]"),
    ("span-of-pads", "nn/heads.py", "start.masked_fill(~seat, torch.finfo(x.dtype).min)", "start",
     "families/parity:numbers[xlnet-XLNetForQuestionAnswering-right-fp32]"),

    # looking
    ("look-without-bias", "nn/attention.py", "scores if bias is None else scores + bias", "scores",
     "model/positions:alibi_is_added_to_the_scores"),
    ("look-unscaled", "nn/attention.py", "(q * self.scale) @", "q @", "families/original:attention_weights[after]"),
    ("look-stored-layer-for-depth", "attention_weights.py", "layers.{depth}", "layers.{at}", "albert-AlbertModel"),
    ("look-always-at-the-first-depth", "attention_weights.py", "*ran[mix][1:], path", "*ran[mix]", "albert-AlbertModel"),
    ("look-at-more-than-asked", "attention_weights.py", ").fullmatch", ").match", "nn/caught_mutants:looks_only_where_asked"),

    # names
    ("conv1d-not-turned", "weights/names_table.py", '"conv1d": (lambda x, n: x.T if x.dim() == 2 else x,',
     '"conv1d": (lambda x, n: x,', "gpt2-GPT2Model"),
    ("conv1d-not-turned-back", "weights/names_table.py", "lambda x, n: x.T if x.dim() == 2 else x),",
     "lambda x, n: x),", "families/names:there_and_back[gpt2-GPT2Model]"),
    ("fused-backwards", "weights/names_table.py", "for i in sorted(", "for i in reversed(", "gpt2-GPT2Model"),
    ("heads-not-in-order", "weights/names_table.py", "x.flatten(1).T,", "x.transpose(1, 2).flatten(1).T,",
     "xlnet-XLNetModel"),
    ("row-from-the-end", "weights/names_table.py", "x.unflatten(1, (n, -1))", "x.flip(1).unflatten(1, (n, -1))",
     "families/names:there_and_back[xlnet-XLNetModel]"),
    ("alias-written", "weights/names_table.py", 'if word != "alias"', "if True",
     "families/names:there_and_back[bert-BertForMaskedLM]"),
)]
# fmt: on


class Verdict(NamedTuple):
    mutant: Mutant
    word: str  # caught, SURVIVED, or NOT RUN: it broke more than it should
    said: str
    seconds: float


def node(test: str) -> str:
    """A test of the table as pytest writes it."""
    file, colon, name = test.partition(":")
    if not colon:
        return f"tests/families/test_parity.py::test_numbers[{test}-none-fp32]"
    folder, _, module = file.rpartition("/")
    return f"tests/{folder}/test_{module}.py::test_{name}"


def problems(table: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the rows: a text that does not stand in its file once, a test that is not there."""
    found, names = [], set()
    for row in table:
        path = root / "qkv" / row.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(row.old)) != 1:
            found.append(f"{row.name}: {row.old!r} stands {count} times in qkv/{row.file}, expected once")
        elif row.old == row.new or row.name in names:
            found.append(f"{row.name}: changes nothing, or its name is taken")
        elif not is_python(text.replace(row.old, row.new)):
            found.append(f"{row.name}: {row.new!r} in place of {row.old!r} is no Python")
        for test in row.tests.split():
            file, _, name = node(test).partition("::")
            held = root / file
            if not held.is_file() or f"def {name.partition('[')[0]}(" not in held.read_text(encoding="utf-8"):
                found.append(f"{row.name}: no test {test}")
        names.add(row.name)
    return found


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def copy(root: Path, folder: Path) -> None:
    """The parts of the repository that tests need, as they are now."""
    for part in COPIED:
        if (root / part).is_dir():
            shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(root / part, folder / part)


def run(folder: Path, module: str, tests: Sequence[str], limit: int) -> tuple[int, str]:
    """pytest's exit status and what it said, in a process of its own."""
    process = multiprocessing.get_context("forkserver").Process(
        target=work, args=(str(folder), module, [*OPTIONS, *tests])
    )
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return TOO_LONG, f"more than {limit} s"
    return process.exitcode or 0, (folder / "said").read_text(encoding="utf-8")


def work(folder: str, module: str, arguments: list[str]) -> None:
    """Imports the module from the folder and runs pytest there; never returns."""
    os.chdir(folder)
    with Path("said").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    for name in [name for name in os.environ if name.startswith(("PYTEST", "CI", "BUILD_NUMBER"))]:
        del os.environ[name]  # in CI pytest spells out every difference, which a mutant makes endless
    os.environ["COLUMNS"] = "300"
    own = {str(ROOT), str(ROOT / "tools")}
    sys.path[:] = [folder, *(path for path in sys.path if path not in own)]
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[name]
    status = NOT_RUN
    try:
        file = importlib.import_module(module).__file__ or ""
        if Path(file).is_relative_to(folder):
            status = importlib.import_module("pytest").main(arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(status)


def attempt(mutant: Mutant, base: Path, wide: Sequence[str] = ()) -> Verdict:
    """One mutant in a copy of its own, held against its tests and then against the wider ones."""
    start = time.monotonic()
    module = "qkv." + mutant.file.removesuffix(".py").replace("/", ".")
    with TemporaryDirectory(prefix="mutant-") as place:
        folder = Path(place).resolve() / "copy"
        shutil.copytree(base, folder)
        path = folder / "qkv" / mutant.file
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        whole = path.read_text(encoding="utf-8")
        path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
        word, said = judge(*run(folder, module, [node(test) for test in mutant.tests.split()], LIMIT))
        if word == "SURVIVED" and wide:
            word, said = judge(*run(folder, module, wide, WIDE_LIMIT))
            path.write_text(whole, encoding="utf-8")
            if word == "caught" and run(folder, module, [said], LIMIT)[0]:
                word, said = "SURVIVED", f"{said} fails without a mutant too"
    return Verdict(mutant, word, said, time.monotonic() - start)


def judge(status: int, output: str) -> tuple[str, str]:
    """What a run of pytest says of a mutant, and the test that failed."""
    failed = re.search(r"^FAILED (tests/.+?)(?: - (.*))?$", output, re.MULTILINE)
    last = (output.strip().splitlines() or ["nothing was said"])[-1]
    if status in (0, TOO_LONG):
        return "SURVIVED", last
    if status != 1 or failed is None or re.match(ACCIDENT, failed[2] or ""):
        return "NOT RUN", failed[0] if failed else last
    return "caught", failed[1]


def main(given: Sequence[str] | None = None) -> int:
    """0 when every mutant was caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2, help="how many at once")
    parser.add_argument("--list", action="store_true", help="show the table and run nothing")
    options = parser.parse_args(given)
    table = [row for row in TABLE if not options.only or row.name in options.only]
    unknown = {*(options.only or ())} - {row.name for row in table}
    if options.list:
        for row in table:
            print(f"{row.name:<32} qkv/{row.file}\n    - {row.old}\n    + {row.new}\n    {row.tests}")
    if wrong := [*problems(table), *(f"no mutant {name}" for name in sorted(unknown))]:
        print("\n".join(wrong))
    if wrong or options.list:
        return int(bool(wrong))

    start = time.monotonic()
    multiprocessing.set_forkserver_preload(PRELOADED if len(table) > 1 else PRELOADED[:-1])
    with TemporaryDirectory(prefix="unbroken-") as place, ThreadPoolExecutor(options.jobs) as pool:
        base = Path(place).resolve()
        copy(ROOT, base)
        tests = sorted({node(test) for row in table for test in row.tests.split()})
        print(f"{len(tests)} tests without a mutant ...", flush=True)
        status, output = run(base, "qkv", tests, 2 * WIDE_LIMIT)
        if status:
            print(f"{output}\nthe tests fail already where nothing is broken")
            return 1
        wide = [*(f"tests/{name.replace('/', '/test_')}.py" for name in WIDE), "-k", "not fp64"]
        waiting = [pool.submit(attempt, row, base, wide) for row in table]
        verdicts = [show(done.result(), n, len(table)) for n, done in enumerate(as_completed(waiting), 1)]
    lost = [f"{each.word}: {each.mutant.name}" for each in verdicts if each.word != "caught"]
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    print("\n".join([*lost, f"{len(table) - len(lost)} of {len(table)} caught ({minutes} min {seconds} s)"]))
    return int(bool(lost))


def show(verdict: Verdict, number: int, total: int) -> Verdict:
    line = f"{number:>3}/{total}  {verdict.word:<8}  {verdict.mutant.name:<32}{verdict.seconds:>6.1f} s"
    print(f"{line}  {verdict.said}", flush=True)
    return verdict


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    sys.exit(main())
