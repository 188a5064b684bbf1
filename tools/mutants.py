"""Mutation testing of the core: change one line, run the tests that should fail, report survivors.

A mutant replaces one string of one file in a copy of the repository. First, all tests of the table
run on the unchanged copy and must pass. Then each mutant runs against its own tests and, if these
pass, against a wider selection. A mutant is caught if a test fails; it is not caught if no test
runs."""

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
COPIED_PATHS = ("qkv", "tests", "tools", "pyproject.toml")
PYTEST_OPTIONS = """
    -x -q -n 0 -p no:cacheprovider --tb=no -rfE -W ignore::pytest.PytestAssertRewriteWarning
""".split()
TIMEOUT = 120  # seconds, for the tests of one mutant
WIDE_TIMEOUT = 300  # seconds, for the wider selection
EXIT_TIMEOUT = 124  # exit statuses that pytest does not use
EXIT_NOT_RUN = 70
# The wider selection, for mutants that survive their own tests.
WIDE_MODULES = """
    nn/patterns nn/sparse_attention kernels/block_sparse nn/packed nn/cache model/positions families/original
    families/xl families/parity families/names model/build
""".split()
# A mutant must compute other numbers. These errors mean that it does not run.
INVALID_MUTANT_ERRORS = r"(Name|UnboundLocal|Import|ModuleNotFound|Syntax|Attribute|Type)Error"
# Imported once by the fork server; none is a module of this repository. The last one is slow to import.
PRELOADED_MODULES = ["pytest", "numpy", "torch", "safetensors.torch", "transformers.modeling_utils"]


class Mutant(NamedTuple):
    """One change to the core. `tests` are those that should fail: `folder/module:test[case]`
    without `test_`, or the name of a parity case."""

    name: str
    file: str  # below qkv/
    old: str  # occurs exactly once in the file
    new: str
    tests: str


# fmt: off
TABLE = [Mutant(*row) for row in (
    # experiments
    ("test-source-in-training", "experiments/corpus.py", "if pair.target not in targets and pair.source not in sources]", "if pair.target not in targets]", "experiments/corpus:no_sentence_of_a_test_pair_is_in_a_training_pair"),
    ("one-direction-of-alignment", "experiments/word_alignment.py", "is_kept = (backward.argmax(0)[links] == rows) & (forward[rows, links] > 0)", "is_kept = forward[rows, links] > 0", "experiments/word_alignment:words_are_aligned_across_a_change_of_order"),
    ("no-diagonal", "experiments/word_alignment.py", "DIAGONAL_WEIGHT = 0.5", "DIAGONAL_WEIGHT = 0.0", "experiments/word_alignment:a_repeated_word_is_linked_to_the_nearest"),
    ("another-head-is-removed", "experiments/measures/heads.py", "slice(head * attention.head_dim, (head + 1) * attention.head_dim)", "slice(0, attention.head_dim)", "experiments/heads:a_removed_head_contributes_nothing"),
    ("peak-is-kept", "experiments/peak_memory.py", "RESET_FILE.write_text(RESET_PEAK)", "RESET_FILE.exists()", "experiments/cost:the_peak_includes_memory_that_was_freed"),
    # runs and resuming
    ("run-in-any-folder", "train/run_folder.py", "if not is_run and any(folder.iterdir()):", "if False:", "train/run_folder:folder_of_others_is_refused"),
    ("unmarked-run-is-foreign", "train/run_folder.py", "is_run = is_marked or any(map(is_checkpoint, checkpoints))", "is_run = is_marked", "train/run_folder:run_of_an_earlier_version_is_marked"),
    ("failed-start-removes-all", "train/run_folder.py", "            for name in PREPARED_FILES:\n", "            for name in [path.name for path in folder.iterdir()]:\n", "train/run_folder:failed_start_removes_only_own_files"),
    ("torn-metrics-stay", "train/run_folder.py", "        if end < len(content):\n", "        if False:\n", "train/run_folder:torn_line_of_metrics_is_cut"),
    ("recipe-rewritten", "train/run_folder.py", "    if read_recipe_text(folder) != text:\n", "    if True:\n", "train/run_folder:resumed_run_does_not_rewrite_its_recipe"),
    ("pretrained-tokenizer-kept", "train/initial_model.py", "    if not source_file.exists():\n        return True\n", "    if not source_file.exists():\n        return False\n", "train/run_folder:pretrained_tokenizer_is_copied_again"),
    ("removed-folder-comes-back", "train/loop/trainer.py", "if not folder.parent.is_dir():", "if False:", "train/run_folder:folder_that_vanishes"),
    ("checkpoint-removed-by-name", "train/loop/checkpoint.py", "            path.rename(get_temporary_path(path))\n        shutil.rmtree(get_temporary_path(path), ignore_errors=True)\n", "            shutil.rmtree(path)\n", "train/run_folder:checkpoint_is_renamed_before_it_is_removed"),
    ("hidden-sigterm", "train/signals.py", "        if self.is_terminated:", "        if False:", "train/signals:hidden_sigterm_is_raised_again"),
    # word vectors
    ("noise-is-unigram", "words/vocabulary.py", "NOISE_EXPONENT = 0.75", "NOISE_EXPONENT = 1.0", "words/vocabulary:noise_words_are_drawn_by_the_unigram_distribution_to_the_power_of_three_quarters"),
    ("window-of-one-size", "words/sampling.py", "torch.randint(1, self.window + 1,", "torch.randint(self.window, self.window + 1,", "words/sampling:windows_are_uniform_from_1_to_the_largest"),
    ("window-crosses-sentences", "words/sampling.py", "torch.minimum(windows, positions - first)", "windows", "words/sampling:windows_end_with_the_sentence"),
    ("shared-noise-counts-whole", "words/update.py", "mul_(-lr * negative / noise.shape[1])", "mul_(-lr * negative)", "words/update:a_step_equals_a_loop_over_pairs"),
    ("cbow-of-sums", "words/update.py", ".div_(num_contexts.clamp(min=1))", "", "words/update:a_step_equals_a_loop_over_pairs"),
    ("training-starts-again", "words/trainer.py", "next_block=next_block,", "next_block=0,", "words/trainer:a_stopped_training_continues_to_the_same_vectors"),
    ("rows-not-counted", "words/read.py", "if self.limit is None and num_rows != count:", "if False:", "words/read:damaged_text_files"),
    ("special-tokens-have-vectors", "train/embeddings.py", "for token_id, text in list_token_texts(tokenizer)", "for text, token_id in tokenizer.get_vocab().items()", "train/embeddings:tokens_of_words_have_their_vectors"),
    # saves in one step
    ("moves-without-manifest", "staging.py", "        manifest.rename(folder / MANIFEST_FILE)\n", "", "weights/staging:a_save_over_another_is_all_or_nothing"),
    ("reader-ignores-manifest", "staging.py", "            if not os.path.lexists(folder / MANIFEST_FILE):\n                yield", "            if True:\n                yield", "weights/staging:a_save_over_another_is_all_or_nothing"),
    ("finished-save-removes-again", "staging.py", "for name in stale if remaining else ():", "for name in stale:", "weights/staging:a_save_without_its_last_step_removes_no_new_file"),
    ("stale-files-stay", "staging.py", '"remove": stale', '"remove": []', "weights/staging:a_save_over_another_is_all_or_nothing"),
    ("sweep-of-live-savers", "staging.py", "if is_dead and {", "if {", "weights/staging:the_staging_folder_of_a_live_process_stays"),
    ("sweep-of-other-folders", "staging.py", "is_dead and {*os.listdir(path)} <= {FILES_FOLDER, MANIFEST_FILE}", "is_dead", "weights/staging:the_staging_folder_of_a_live_process_stays"),
    ("moves-without-lock", "staging.py", "    with _lock(folder):\n        _move_files(folder)  # of", "    if True:\n        _move_files(folder)  # of", "weights/staging:two_savers_and_readers"),
    ("readers-without-lock", "staging.py", "with _lock(folder, shared=True):", "if True:", "weights/staging:two_savers_and_readers"),
    ("save-in-place", "staging.py", "    if any(STAGING_NAME.fullmatch(part) for part in target.parts):", "    if True:", "weights/staging:a_save_over_another_is_all_or_nothing"),
    ("unchanged-after-commit", "staging.py", '        stage.state = "committed"\n', "", "weights/staging:an_error_keeps_the_old_files_and_the_message_is_true"),
    ("foreign-files-are-replaced", "staging.py", "    if existing:\n", "    if False:\n", "weights/staging:a_file_of_others_is_not_replaced"),
    ("model-without-mark-is-replaced", "model/file_names.py", "return bool(list_weight_files(folder)) or states_model_type(folder)", "return True", "model/save:a_folder_without_a_model_keeps_its_files"),
    ("old-tokenizer-stays", "model/file_names.py", "if name not in TOKENIZER_FILES or not TOKENIZER_FILES.isdisjoint(names)", "if name not in TOKENIZER_FILES", "model/save:files_of_another_kind_of_tokenizer_are_removed"),
    # experiments
    ("torn-row-stays", "experiments/table.py", "            if end < len(content):\n", "            if False:\n", "experiments/table:a_torn_line_is_ignored_and_then_removed"),
    ("finished-cell-is-claimed", "experiments/table.py", "yield cell.key not in self.read()", "yield True", "experiments/table:a_finished_cell_cannot_be_claimed"),
    ("key-without-settings", "experiments/experiment.py", "[self.measure, self.settings, self.seed]", "[self.measure, self.seed]", "experiments/experiment:a_key_depends_on_settings_and_not_on_names"),
    ("seed-is-innermost", "experiments/experiment.py", "cells.sort(key=lambda cell: cell.seed)", "cells.sort(key=lambda cell: cell.name)", "experiments/experiment:a_cell_for_every_combination_with_the_seed_outermost"),
    ("mean-is-the-lowest-seed", "experiments/figure.py", "sum(ys) / len(ys)", "min(ys)", "experiments/run:the_figure_is_drawn_from_the_table_alone"),
    ("stopped-training-is-a-result", "experiments/recipe_training.py", "if state.step < total_steps:", "if state.step < 0:", "experiments/recipe_training:a_stopped_training_has_no_result"),
    ("retrieval-without-memory", "experiments/measures/retrieval.py", 'mems = net(Batch(decoder=Inputs.create(part), mems=mems))["mems"]', 'mems = net(Batch(decoder=Inputs.create(part)))["mems"]', "experiments/measures:a_token_is_retrieved_by_attention_but_not_from_beyond_the_memory"),
    # captions and CLIP
    ("evaluation-is-augmented", "train/objectives/captioning.py", "noise=images.read,", "noise=images.read_to_augment,", "train/objectives/captioning:images_are_augmented_in_training_only[image-captioning]"),
    ("background-is-black", "data/noise/augmentation.py", "    y += background\n", "", "data/augmentation:translation_moves_the_picture_on_its_background"),
    ("coverage-of-sums", "train/objectives/captioning.py", "(1 - coverage).square().mean()", "coverage.square().mean()", "train/objectives/captioning:doubly_stochastic_attention_equals_its_formula"),
    ("recall-counts-pictures", "train/evaluate/retrieval_evaluator.py", "text_embeds = np.stack(texts)[first]", "text_embeds = np.stack(texts)[first] * 0", "train/objectives/captioning:recall_counts_the_names_not_the_pictures"),
    ("convolution-without-residual", "nn/patches.py", "return F.relu(x + self.residual_norm(self.residual(x)))", "return F.relu(self.residual_norm(self.residual(x)))", "nn/convolutions:convolutional_features_equal_their_formula"),
    # drawing
    ("partial-tile-without-inf", "kernels/partial_attention.py", "value=torch.inf", "value=0.0", "kernels/block_sparse:rows_beyond_the_queries_of_a_tile_are_ignored"),
    ("image-patches-transposed", "image_tokenizer.py", "return patches.transpose(0, 1, 3, 2, 4, 5).reshape(-1, patch_size**2 * num_channels)", "return patches.transpose(0, 3, 1, 2, 4, 5).reshape(-1, patch_size**2 * num_channels)", "data/image_tokenizer:a_code_is_the_nearest_patch_in_reading_order"),
    ("nearest-code-without-norm", "image_tokenizer.py", "(square_norms - 2 * chunk @ codes.T).argmin(1)", "(-2 * chunk @ codes.T).argmin(1)", "data/image_tokenizer:a_code_is_the_nearest_patch_in_reading_order"),
    ("caption-is-a-target", "train/objectives/text_to_image.py", "labels[:, :-num_codes] = IGNORE_INDEX", "labels[:, :0] = IGNORE_INDEX", "train/objectives/text_to_image:only_codes_are_targets"),
    ("captions-never-dropped", "train/objectives/text_to_image.py", "if rng.random() < caption_dropout:", "if rng.random() < 0 * caption_dropout:", "train/objectives/text_to_image:captions_are_dropped_in_training"),
    ("text-is-drawn", "tasks/write/draw.py", '"suppress_tokens": tuple(range(len(self.tokenizer))),', '"suppress_tokens": (),', "tasks/draw:an_image_has_exactly_its_codes"),
    ("guidance-without-scale", "decode/guidance.py", "self.guidance_scale * (scores - negative_scores)", "1.0 * (scores - negative_scores)", "decode/guidance:greedy_search_equals_that_of_transformers"),
    # attention patterns
    ("causal-excludes-self", "spec/patterns.py", "return j <= i", "return j < i", "nn/patterns:a_pattern_shows_each_query_its_keys[causal]"),
    ("banded-window-off-by-one", "spec/patterns.py", "i - j < self.window", "i - j <= self.window", "nn/patterns:a_pattern_shows_each_query_its_keys[banded]"),
    ("local-window-off-by-one", "spec/patterns.py", "(i - j <= self.window)", "(i - j < self.window)",
     "nn/patterns:a_pattern_shows_each_query_its_keys[local]"),
    ("strided-wrong-remainder", "spec/patterns.py", "(i - j) % self.stride == 0", "(i - j) % self.stride == 1",
     "nn/patterns:a_pattern_shows_each_query_its_keys[strided]"),
    ("chunk-is-sliding-window", "spec/patterns.py", "i // self.stride == j // self.stride", "(i - j) // self.stride == 0",
     "nn/patterns:a_pattern_shows_each_query_its_keys[chunk]"),
    ("chunk-ends-off-by-one", "spec/patterns.py", "j % self.stride >= self.stride", "j % self.stride > self.stride",
     "nn/patterns:a_pattern_shows_each_query_its_keys[chunk-ends]"),
    ("prefix-off-by-one", "spec/patterns.py", "(j < self.length)", "(j <= self.length)", "nn/patterns:a_pattern_shows_each_query_its_keys[prefix]"),
    ("memory-window-off-by-one", "spec/patterns.py", "Banded(length + 1)", "Banded(length)", "xlnet-XLNetModel-length"),
    ("and-is-or", "spec/patterns.py", "self.left(i, j) & self.right(i, j)", "self.left(i, j) | self.right(i, j)",
     "nn/patterns:a_pattern_shows_each_query_its_keys[and]"),
    ("layer-patterns-not-alternating", "spec/model.py", "patterns[i % len(patterns)]", "patterns[0]",
     "nn/sparse_attention:model_equals_dense_masks[gpt3-37-plain]"),

    # mask and bias
    ("padding-attended", "kernels/bias.py", "(keys >= 0)", "(keys >= -1)",
     "model/positions:padded_row_equals_row_alone[bert-learned]"),
    ("document-mask-ignored", "kernels/bias.py", "(q_documents == k_documents)", "(k_documents == k_documents)",
     "nn/packed:a_packed_document_equals_the_document_alone[bert]"),
    ("mems-hidden-from-documents", "kernels/bias.py", " | (k_documents < 0)", "",
     "nn/packed:all_documents_of_a_row_attend_to_its_memory[xlnet]"),
    ("kernel-choice-ignores-padding", "kernels/bias.py", "self.has_no_padding and self.document_ids is None\n\n", "self.document_ids is None\n\n",
     "model/positions:padded_row_equals_row_alone[bert-learned]"),
    ("permutation-mask-ignored", "kernels/bias.py", "mask & self.permutation_mask[:, None, rows, columns]", "mask",
     "xlnet-XLNetLMHeadModel-permute"),
    ("position-bias-not-added", "kernels/bias.py", "self.apply_mask(self.position_bias, self.mask)", "self.apply_mask(None, self.mask)",
     "model/positions:t5_buckets_equal_the_formula"),
    ("mask-value-too-small", "kernels/bias.py", "min_score(scores.dtype)", "-8.0",
     "nn/patterns:no_query_of_a_decoder_attends_to_later_keys[gpt3]"),
    ("last-query-mask-on-every-query", "kernels/bias.py", "and self.q_positions.shape[1] == 1", "",
     "nn/patterns:no_query_of_a_decoder_attends_to_later_keys[t5]"),

    # block-sparse attention
    ("block-sparse-never-used", "kernels/bias.py", "MIN_BLOCK_SPARSE_LENGTH = 256", "MIN_BLOCK_SPARSE_LENGTH = 1 << 40",
     "nn/sparse_attention:sparse_layers_make_no_square_tensor[strided-merged-plain]"),
    ("block-window-too-narrow", "kernels/block_sparse.py", "-window, size", "1 - window, size",
     "kernels/block_sparse:kernel_equals_dense_attention[36-local-plain]"),
    ("block-window-no-lookahead", "kernels/block_sparse.py", "lookahead = window if", "lookahead = 0 if",
     "kernels/block_sparse:kernel_equals_dense_attention[36-local-plain]"),
    ("strided-blocks-truncated", "kernels/block_sparse.py", "-(-length // stride), step", "length // stride, step",
     "kernels/block_sparse:kernel_equals_dense_attention[36-strided-plain]"),
    ("block-keys-counted-twice", "kernels/block_sparse.py", "block.earlier + earlier", "block.earlier",
     "kernels/block_sparse:kernel_equals_dense_attention[36-merged-plain]"),
    ("block-keys-before-row-start", "kernels/block_sparse.py", "(block.k >= 0) & ", "",
     "kernels/block_sparse:kernel_equals_dense_attention[36-banded-plain]"),
    ("chunk-ends-of-padding", "kernels/block_sparse.py", "(positions >= 0) & ", "",
     "nn/sparse_attention:model_equals_dense_masks[fixed-merged-256-left]"),
    ("block-chunk-ends-off-by-one", "kernels/block_sparse.py", "% stride >= stride - count", "% stride > stride - count",
     "kernels/block_sparse:kernel_equals_dense_attention[36-fixed-plain]"),
    ("block-merge-ignores-lse", "kernels/block_sparse.py", "partial_lse = partial_lse[..., None]",
     "partial_lse = 0 * partial_lse[..., None]", "kernels/block_sparse:kernel_equals_dense_attention[36-merged-plain]"),
    ("block-merge-maximum-for-logaddexp", "kernels/partial_attention.py", "torch.logaddexp(lse, partial_lse)",
     "torch.maximum(lse, partial_lse)", "kernels/block_sparse:kernel_equals_dense_attention[36-merged-plain]"),
    ("query-without-keys-has-gradient", "kernels/block_sparse.py", "min_score(q.dtype) / 2, torch.inf)",
     "2 * min_score(q.dtype), 0)", "kernels/block_sparse:kernel_equals_dense_attention[83-merged-left]"),
    ("per-head-outputs-not-reordered", "kernels/block_sparse.py", ").argsort()", ")",
     "kernels/block_sparse:every_head_keeps_its_pattern"),

    ("flash-kernel-of-masked-rows", "kernels/block_sparse.py", "if is_unmasked and supports_window_flash", "if supports_window_flash",
     "nn/sparse_attention:only_rows_without_a_mask_are_computed_without_one[packed-strided-layers]"),
    ("strided-part-with-near-tokens", "kernels/window_flash.py", "skip=num_near", "skip=num_near - 1",
     "kernels/window_flash:parts_of_a_pattern_are_merged_into_one_softmax[36-merged]"),
    ("window-includes-one-more", "kernels/window_flash.py", "return (FlashPart(window=(window - 1, 0)),)",
     "return (FlashPart(window=(window, 0)),)",
     "kernels/window_flash:parts_of_a_pattern_are_merged_into_one_softmax[36-banded]"),
    ("gradient-of-the-first-part-only", "kernels/window_flash.py", "place += values_of_rows", "pass",
     "kernels/window_flash:parts_of_a_pattern_are_merged_into_one_softmax[83-merged]"),

    # partial attention
    ("output-of-another-layout", "kernels/partial_attention.py", "out.transpose(1, 2).contiguous().transpose(1, 2)",
     "out.contiguous()", "kernels/block_sparse:the_kernel_gets_the_output_in_its_layout"),
    ("partial-gradient-without-output-term", "kernels/partial_attention.py",
     "- (grad * out).sum(-1, keepdim=True)) * scale", ") * scale",
     "kernels/block_sparse:partial_attention_equals_its_reference"),
    ("partial-backward-without-dropout", "kernels/partial_attention.py",
     "keep = saved[0] / (1 - dropout) if dropout else 1.0", "keep = 1.0",
     "kernels/block_sparse:backward_has_the_dropout_of_the_forward[merged]"),
    ("partial-dropout-not-rescaled", "kernels/partial_attention.py", "weights * keep / (1 - dropout)", "weights * keep",
     "kernels/block_sparse:backward_has_the_dropout_of_the_forward[merged]"),
    ("partial-lse-is-maximum", "kernels/partial_attention.py", "lse = scores.logsumexp(-1)", "lse = scores.amax(-1)",
     "kernels/block_sparse:partial_attention_equals_its_reference"),
    ("partial-key-gradient-scaled-twice", "kernels/partial_attention.py", "grad_scores.transpose(-1, -2) @ q",
     "grad_scores.transpose(-1, -2) @ (q * scale)", "kernels/block_sparse:partial_attention_equals_its_reference"),
    ("partial-mask-inverted", "kernels/partial_attention.py", "masked_fill_(~visible,", "masked_fill_(visible,",
     "kernels/block_sparse:kernel_equals_dense_attention[36-banded-plain]"),

    # positions of the inputs
    ("positions-count-padding", "batch.py", "count_in_documents(valid, starts)", "count_in_documents(valid | True, starts)",
     "model/positions:padded_row_equals_row_alone[bert-learned]"),
    ("positions-not-reset-per-document", "batch.py", "(count - flags.long()) * starts", "(count * 0) * starts",
     "nn/packed:a_packed_document_equals_the_document_alone[gpt2]"),
    ("padding-position-not-masked", "batch.py", "self.position_ids.masked_fill(~self.attention_mask, -1)",
     "self.position_ids", "model/positions:padded_row_equals_row_alone[bert-learned]"),
    ("gaps-treated-as-contiguous", "batch.py", "contiguous = mask is None or", "contiguous = True or",
     "nn/sparse_attention:padding_inside_a_row_adds_no_distance"),
    ("max-distance-off-by-one", "batch.py", "max_distance = length - 1", "max_distance = length - 2",
     "model/positions:xl_scores_equal_the_formula[bert]"),
    ("max-distance-ignores-position-ids", "batch.py", "int(position_ids.max())", "length - 1",
     "nn/relative_position:position_ids_may_be_far_apart"),
    ("max-distance-ignores-cache", "nn/transformer.py", "inputs.max_distance + cached", "inputs.max_distance",
     "nn/cache:decoding_token_by_token_equals_a_full_forward[transformer-xl]"),
    ("export-cached-positions-unshifted", "export/modules.py", "count + (position_ids[:, -1:] - count[:, -1:])",
     "count - 1", "export/graphs:positions_of_a_decoder_may_begin_anywhere"),
    ("export-source-padding-attended", "export/modules.py", "source_positions = count_positions(mask).masked_fill(~mask, -1)",
     "source_positions = count_positions(mask)", "export/graphs:graphs_of_an_encoder_decoder_equal_the_model[bart-lm]"),
    ("marian-features-not-permuted", "model/transforms/hf_family.py", "torch.cat([features[::2], features[1::2]])",
     "features", "model/hf_family:outputs_of_marian_equal_those_of_the_transformer[plain]"),
    ("token-ids-not-stated", "model/token_ids.py", "stated[key] = token_id", "pass",
     "model/token_ids:configs_have_the_ids_of_the_tokenizer[gpt2]"),
    ("position-ids-shifted-by-cache", "nn/transformer.py", "inputs.offset_by_cache and len(cache)", "len(cache)",
     "nn/cache:a_cache_does_not_shift_position_ids"),
    ("next-position-counts-padding", "nn/cache.py", "self.positions.amax(dim=1, keepdim=True) + 1",
     "0 * self.positions[:, :1] + len(self)", "nn/cache:prompts_may_have_different_lengths[left-gpt2]"),
    ("position-offset-missing", "nn/embedding.py", "inputs.position_ids + spec.positions.offset", "inputs.position_ids",
     "roberta-RobertaModel"),
    ("position-offset-is-pad-id", "families/bert.py", "(pad_token_id or 0) + 1 if", "(pad_token_id or 0) if",
     "roberta-RobertaModel"),
    ("sinusoid-cosine-first", "nn/embedding.py", "[angles.sin(), angles.cos()]", "[angles.cos(), angles.sin()]",
     "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),
    ("sinusoid-not-interleaved", "nn/embedding.py", 'if layout == "pairs"', "if False",
     "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),

    # relative positions
    ("t5-bucket-sign", "nn/relative_position.py", "torch.where(offset > 0, num_buckets, 0)",
     "torch.where(offset < 0, num_buckets, 0)", "model/positions:t5_buckets_equal_the_formula"),
    ("t5-exact-buckets-off-by-one", "nn/relative_position.py", "exact = num_buckets // 2", "exact = num_buckets // 2 + 1",
     "model/positions:t5_buckets_equal_the_formula"),
    ("t5-buckets-unidirectional", "nn/relative_position.py", "if self.spec.is_bidirectional:", "if False:",
     "model/positions:t5_buckets_equal_the_formula"),
    ("t5-last-bucket-off-by-one", "nn/relative_position.py", "clamp(max=num_buckets - 1)", "clamp(max=num_buckets - 2)",
     "model/positions:t5_buckets_equal_the_formula"),
    ("t5-log-buckets-too-fast", "nn/relative_position.py", "growth * (num_buckets - exact)", "growth * num_buckets",
     "model/positions:t5_buckets_equal_the_formula"),
    ("t5-decoder-buckets-bidirectional", "families/t5.py", "is_bidirectional=False", "is_bidirectional=True",
     "t5-T5Model"),
    ("replaced-buckets-always-bidirectional", "model/transforms/positions.py",
     "isinstance(attention.pattern, Full | Local)", "True",
     "nn/relative_position:all_buckets_of_a_decoder_are_for_earlier_positions"),
    ("alibi-slope-off-by-one", "nn/relative_position.py", "torch.arange(1, self.heads + 1,", "torch.arange(0, self.heads,",
     "model/positions:alibi_has_the_slopes_of_the_paper"),
    ("alibi-extra-slopes", "nn/relative_position.py", "self.power_of_two - 0.5", "self.power_of_two",
     "model/positions:alibi_has_the_slopes_of_the_paper"),
    ("rotary-sign", "nn/relative_position.py", "a * cos - b * sin, b * cos + a * sin",
     "a * cos + b * sin, b * cos - a * sin", "model/positions:rotary_positions_rotate_complex_numbers"),
    ("rotary-theta-ignored", "nn/relative_position.py", "self.spec.theta **", "10000.0 **",
     "model/positions:rotary_positions_rotate_complex_numbers[500000.0]"),
    ("rotary-keys-not-rotated", "nn/attention.py", "self.rotary(k, positions)", "k",
     "model/positions:rotary_positions_rotate_queries_and_keys[gpt2]"),
    ("rotary-linear-scaling-inverted", "nn/relative_position.py", 'frequencies / scaling.get("factor", 1)',
     'frequencies * scaling.get("factor", 1)', "llama-LlamaModel-linear"),
    ("rotary-llama3-interpolation-inverted", "nn/relative_position.py", "scaled.lerp(frequencies,", "frequencies.lerp(scaled,",
     "llama-LlamaModel-llama3"),
    ("xl-clamp-ignored", "nn/relative_position.py", "self.spec.clamp_length > 0", "self.spec.clamp_length > 1 << 30",
     "nn/relative_position:distances_beyond_clamp_len_have_one_score"),
    ("xl-u-for-v", "nn/relative_position.py", "(q + self.v[:, None]) @ r", "(q + self.u[:, None]) @ r",
     "model/positions:xl_scores_equal_the_formula[gpt2]"),
    ("xl-content-bias-missing", "nn/relative_position.py", "return q + self.u[:, None],", "return q,",
     "model/positions:xl_scores_equal_the_formula[gpt2]"),
    ("xl-distance-sign", "nn/relative_position.py", "bias.q_positions[:, :, None] - bias.k_positions[:, None, :]",
     "bias.k_positions[:, None, :] - bias.q_positions[:, :, None]",
     "nn/relative_position:shifted_scores_equal_gathered_scores"),
    ("xl-distances-reversed", "nn/relative_position.py", "torch.arange(max_distance, min_distance - 1, -1,",
     "torch.arange(min_distance, max_distance + 1, 1,", "model/positions:xl_scores_equal_the_formula[bert]"),
    ("xl-never-bidirectional", "nn/relative_position.py", "isinstance(attention.pattern, Full | Local)", "False",
     "model/positions:xl_scores_equal_the_formula[bert]"),
    ("xl-bias-not-scaled", "nn/relative_position.py", "scores * self.scale", "scores", "model/positions:xl_scores_equal_the_formula[gpt2]"),
    ("xl-biases-always-shared", "nn/transformer.py", " and first.spec.share_biases", "", "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("xlnet-segment-embeddings-swapped", "nn/relative_position.py", "e[..., 1:], e[..., :1]", "e[..., :1], e[..., 1:]",
     "xlnet-XLNetLMHeadModel-clamp"),
    ("xlnet-segment-bias-missing", "nn/relative_position.py", "q + self.s[:, None], self.e", "q, self.e",
     "xlnet-XLNetLMHeadModel-clamp"),

    # attention
    ("keys-and-values-swapped", "nn/attention.py", "self.kernel(q, k, v, bias, layer_bias)",
     "self.kernel(q, v, k, bias, layer_bias)", "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),
    ("scores-not-scaled", "kernels/attention.py", "is_causal, scale=scale", "is_causal, scale=1.0",
     "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),
    ("scale-without-square-root", "nn/attention.py", "1 / math.sqrt(spec.head_dim)", "1 / spec.head_dim",
     "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),
    ("grouped-query-heads-interleaved", "kernels/attention.py", "x.repeat_interleave(heads // x.shape[1], dim=1)",
     "x.repeat(1, heads // x.shape[1], 1, 1)", "llama-LlamaForCausalLM-keys"),
    ("attention-dropout-in-eval", "nn/attention.py", "self.dropout if self.training else 0.0", "self.dropout",
     "model/build:dropout_acts_only_in_training[bert]"),
    ("entmax-scores-not-halved", "nn/selections.py", "shift_scores(scores / 2, mask)", "shift_scores(scores, mask)",
     "nn/selections:weights_equal_the_reference_of_each_row[entmax15]"),
    ("sparsemax-gradient-without-threshold", "nn/selections.py", "(p.sum(-1, keepdim=True) - 1) / slope",
     "(p.detach().sum(-1, keepdim=True) - 1) / slope", "nn/selections:gradients_equal_finite_differences[sparsemax]"),
    ("local-window-is-sigma", "nn/selections.py", "sigma = self.window / 2", "sigma = self.window",
     "nn/selections:weights_equal_the_reference_of_each_row[local-p]"),
    ("hard-attention-samples-in-eval", "nn/selections.py",
     "if not self.training:\n            return one_hot_argmax", "if False:\n            return one_hot_argmax",
     "model/attention_variants:hard_attention_samples_in_training_only"),
    ("position-bias-not-scored", "nn/scored_attention.py", "for term in (bias.position_bias, layer_bias):",
     "for term in (layer_bias,):", "model/attention_variants:dot_products_by_the_general_kernel_equal_the_fast_kernel[dot]"),
    ("reinforce-raises-the-loss", "train/objectives/reinforce.py", ".sum() * reinforce_weight / num_targets",
     ".sum() * -reinforce_weight / num_targets",
     "train/objectives/reinforce:the_expectation_of_the_gradient_is_that_of_the_expected_loss[4.0-True]"),
    ("reinforce-without-baseline", "train/objectives/reinforce.py", "(losses_of_targets - expected).detach()",
     "losses_of_targets.detach()", "train/objectives/reinforce:a_good_baseline_and_causality_lower_the_variance"),
    ("reinforce-earlier-targets", "train/objectives/reinforce.py", "advantages.flip(1).cumsum(1).flip(1)",
     "advantages.cumsum(1)",
     "train/objectives/reinforce:the_expectation_of_the_gradient_is_that_of_the_expected_loss[4.0-True]"),
    ("baseline-not-restored", "train/loop/trainer_state.py",
     'trainer.objective.baseline.value.copy_(tensors["baseline"]["baseline"])', "pass",
     "train/attention_training:hard_attention_resumes_exactly"),
    ("inverse-layer-scale-off-by-one", "families/gpt2.py", "base_scale / (i + 1) if", "base_scale / (i + 2) if",
     "gpt2-GPT2LMHeadModel-inverse"),
    ("t5-scores-scaled", "families/t5.py", "bias=False, scale=1.0", "bias=False", "t5-T5Model"),
    ("modernbert-window-doubled", "families/modernbert.py", "s.Local(local_attention // 2)", "s.Local(local_attention)",
     "modernbert-ModernBertModel"),

    # feed-forward
    ("gelu-new-is-erf", "nn/embedding.py", 'approximate="tanh"', 'approximate="none"',
     "nn/sparse_attention:model_equals_dense_masks[gpt3-37-plain]"),
    ("gelu-is-tanh", "nn/embedding.py", '"gelu": F.gelu', '"gelu": tanh_gelu', "bert-BertModel"),
    ("silu-is-mish", "nn/embedding.py", '"silu": F.silu', '"silu": F.mish', "bert-BertModel-keys"),
    ("quick-gelu-factor", "nn/embedding.py", "1.702", "1.7", "clip-CLIPTextModel"),
    ("t5-gated-gelu-is-erf", "families/t5.py", '"gelu_new" if feed_forward_proj', '"gelu" if feed_forward_proj',
     "t5-T5ForConditionalGeneration-gated"),
    ("gpt-gelu-is-erf", "families/gpt.py", '{"afn": "gelu_new"} if', '{"afn": "gelu"} if',
     "openai-OpenAIGPTModel"),
    ("gate-activation-on-wrong-factor", "nn/feed_forward.py", "self.activation(self.gate(x)) * y",
     "self.gate(x) * self.activation(y)", "llama-LlamaModel"),
    ("router-sigmoid-for-softmax", "nn/feed_forward.py", "logits.softmax(-1).to", "logits.sigmoid().to",
     "switch_transformers-SwitchTransformersEncoderModel"),
    ("router-jitter-in-eval", "nn/feed_forward.py", "self.training and self.router_jitter", "self.router_jitter",
     "model/build:dropout_acts_only_in_training[switch]"),
    ("router-probability-missing", "nn/feed_forward.py", "(prob * has_capacity)", "has_capacity",
     "switch_transformers-SwitchTransformersEncoderModel"),
    ("expert-capacity-off-by-one", "nn/feed_forward.py", "min(self.capacity,", "min(self.capacity + 1,",
     "switch_transformers-SwitchTransformersForConditionalGeneration-overflow"),
    ("overflow-tokens-not-dropped", "nn/feed_forward.py", "(prob * has_capacity)[", "prob[",
     "switch_transformers-SwitchTransformersForConditionalGeneration-overflow"),
    ("balance-loss-not-times-experts", "nn/feed_forward.py", "* count**2", "* count",
     "nn/feed_forward:router_losses_equal_the_formulas_of_the_papers"),
    ("z-loss-not-squared", "nn/feed_forward.py", ".logsumexp(-1).square()", ".logsumexp(-1)",
     "nn/feed_forward:router_losses_equal_the_formulas_of_the_papers"),
    ("sparse-layers-off-by-one", "families/switch.py", "i % step == 1", "i % step == 0",
     "switch_transformers-SwitchTransformersEncoderModel"),

    # norms and residuals
    ("layer-norm-epsilon", "nn/embedding.py", "nn.LayerNorm(width, eps=spec.eps", "nn.LayerNorm(width, eps=1e-5",
     "bert-BertModel-keys"),
    ("rms-norm-centered", "nn/embedding.py", "nn.RMSNorm(width, eps=spec.eps)", "nn.LayerNorm(width, eps=spec.eps, bias=False)",
     "llama-LlamaModel"),
    ("ctrl-layer-norm-epsilon", "families/gpt2.py", "layer_norm_eps or norm_eps", "norm_eps",
     "ctrl-CTRLModel-keys"),
    ("attention-residual-missing", "nn/transformer.py", "self.post_attention_norm(x + ", "self.post_attention_norm(y + ",
     "families/original:outputs_and_gradients_match_the_reference[pre-none-fp32]"),
    ("feed-forward-norm-missing", "nn/transformer.py", "self.pre_feed_forward_norm(x)", "x",
     "families/original:outputs_and_gradients_match_the_reference[pre-none-fp32]"),
    ("final-norm-missing", "nn/transformer.py", "self.dropout(self.final_norm(x))", "self.dropout(x)",
     "families/original:outputs_and_gradients_match_the_reference[final-none-fp32]"),
    ("feed-forward-residual-missing", "nn/transformer.py", "self.post_feed_forward_norm(x + self.dropout(y))",
     "self.post_feed_forward_norm(self.dropout(y))", "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),
    ("residual-init-not-scaled", "families/gpt2.py", "init_std / (2 * depth) ** 0.5", "init_std",
     "model/build:residual_projections_start_with_smaller_weights[gpt2]"),

    # embeddings
    ("embedding-scale-missing", "nn/embedding.py", "self.tokens(inputs.input_ids) * spec.scale",
     "self.tokens(inputs.input_ids)", "families/original:outputs_and_gradients_match_the_reference[post-none-fp32]"),
    ("inputs-embeds-always-scaled", "nn/embedding.py", "if spec.scale_inputs_embeds", "if True",
     "nn/embedding:inputs_embeds_are_scaled_as_in_the_original"),
    ("inputs-embeds-never-scaled", "families/gpt2.py", ", scale_inputs_embeds=True", "",
     "families/parity:outputs_and_gradients_match_the_reference[ctrl-CTRLModel-embeds-fp32]"),
    ("default-token-type-is-last", "nn/embedding.py", "self.token_types.weight[0]", "self.token_types.weight[-1]",
     "nn/embedding:token_type_ids_default_to_zero"),
    ("token-types-not-scaled", "nn/embedding.py", "self.tokens(inputs.token_type_ids) * spec.scale",
     "self.tokens(inputs.token_type_ids)", "ctrl-CTRLModel-keys"),
    ("padding-embedding-trained", "nn/embedding.py", "padding_idx=spec.padding_idx", "padding_idx=None",
     "nn/embedding:the_pad_embedding_has_no_gradient"),
    ("vit-reads-patches", "families/vit.py", 'image_classification_head(num_labels, "first")',
     'image_classification_head(num_labels, "patch_mean")', "vit-ViTForImageClassification"),
    ("one-number-is-the-shortest-edge", "model/preprocessing.py", "    if isinstance(complete.get(\"size\"), int)",
     "    if False", "data/images:pixel_values_equal_those_of_the_vit_processor"),
    ("idx-label-of-the-next-class", "data/read/idx.py", "str(label[0])", "str(label[0] + 1)",
     "data/idx:images_and_labels_are_read"),
    ("images-never-augmented", "train/objectives/image_classification.py", "        train_noise=train_noise,",
     "        train_noise=None,", "train/objectives/image_classification:only_training_images_are_augmented"),
    ("padding-frame-in-training", "train/objectives/image_classification.py", "torch.arange(length) < lengths[:, None]",
     "torch.arange(length) <= lengths[:, None]", "train/objectives/image_classification:clips_are_padded"),
    ("padding-frame-in-tags", "tasks/read/classify_image.py", "torch.arange(length) < lengths[:, None]",
     "torch.arange(length) <= lengths[:, None]", "tasks/classify_image:every_frame_has_a_label"),
    ("class-token-last", "nn/patches.py", "[self.weight.expand(len(patches), 1, -1), patches]",
     "[patches, self.weight.expand(len(patches), 1, -1)]", "clip-CLIPVisionModel"),
    ("adaptive-cutoff-off-by-one", "nn/embedding.py", "(input_ids >= low)", "(input_ids > low)",
     "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("adaptive-embedding-not-scaled", "nn/embedding.py", "self.scale = math.sqrt(width)", "self.scale = 1.0",
     "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("embeddings-always-shared", "nn/network.py", "self.encoder and self.decoder and spec.share_embeddings",
     "self.encoder and self.decoder", "families/original:outputs_and_gradients_match_the_reference[two-none-fp32]"),

    # depth
    ("albert-group-order", "families/albert.py", "int(i / (depth / num_groups)) * inner_group_num",
     "(i % num_groups) * inner_group_num", "albert-AlbertModel-groups"),

    # caches and segment recurrence
    ("cache-loses-positions", "nn/cache.py", "torch.cat([self.positions, positions], dim=1)",
     "torch.cat([self.positions, 0 * positions], dim=1)", "nn/cache:decoding_token_by_token_equals_a_full_forward[gpt2]"),
    ("cache-key-positions-zeroed", "nn/cache.py", "new.expand(batch_size, -1)]", "0 * new.expand(batch_size, -1)]",
     "nn/cache:decoding_in_chunks_equals_a_full_forward[gpt2]"),
    ("cache-swaps-keys-and-values", "nn/attention.py", 'cache.update({"k": k, "v": v}', 'cache.update({"k": v, "v": k}',
     "nn/cache:decoding_token_by_token_equals_a_full_forward[gpt2]"),
    ("cached-padding-attended", "nn/transformer.py", "(is_uncached or cache.has_no_padding)", "True",
     "nn/cache:prompts_may_have_different_lengths[left-gpt2]"),
    ("mems-not-normed", "nn/transformer.py", "else self.pre_attention_norm(key_states)", "else key_states",
     "families/xl:outputs_and_gradients_match_the_reference[xl-prenorm]"),
    ("mems-not-detached", "nn/transformer.py", ".detach()", "", "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("mems-one-too-long", "nn/transformer.py", "states.shape[1] - (recurrence.memory_length or 0)",
     "states.shape[1] - (recurrence.memory_length or 0) - 1", "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("reuse-length-off-by-one", "nn/transformer.py", "states.shape[1] - length + reuse_length]",
     "states.shape[1] - length + reuse_length + 1]", "xlnet-XLNetModel-memory"),
    ("mems-keep-padding", "nn/transformer.py", "is_token.cumsum(1) <= reuse_length", "is_token.cumsum(1) >= 0",
     "nn/segment_memory:memory_of_a_padded_row_equals_that_of_the_row_alone[xlnet-reuse-right]"),
    ("mems-attend-to-padding", "nn/transformer.py", "None if recurrence.starts_with_zeros else (mems != 0)",
     "None if True else (mems != 0)", "nn/segment_memory:memory_of_a_padded_row_equals_that_of_the_row_alone[xlnet-right]"),
    ("pad-id-counted", "nn/embedding.py", "inputs.position_ids - num_skipped", "inputs.position_ids",
     "roberta-RobertaModel-pad-inside"),
    ("no-initial-zero-mems", "nn/transformer.py", "recurrence.starts_with_zeros and mems is None", "False",
     "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("mems-token-type", "nn/transformer.py", "split_queries_and_keys(inputs.token_type_ids, 0)",
     "split_queries_and_keys(inputs.token_type_ids, 1)", "xlnet-XLNetModel-memory"),
    ("mems-masked-by-permutation", "nn/transformer.py", "permutation_mask.new_ones", "permutation_mask.new_zeros",
     "xlnet-XLNetLMHeadModel-both"),

    # cross-attention, query stream, dual encoder, decoder inputs
    ("cross-attention-to-padding", "nn/transformer.py", "has_no_padding=encoder_outputs.attention_mask is None", "has_no_padding=True",
     "model/positions:padded_row_equals_row_alone[bart-learned]"),
    ("cross-attention-ignores-documents", "nn/transformer.py", "document_ids=documents", "document_ids=None",
     "nn/packed:a_packed_document_equals_the_document_alone[bart]"),
    ("cross-attention-to-cached-padding", "nn/transformer.py", "has_no_padding=cache.has_no_padding,",
     "has_no_padding=True,", "nn/cache:decoding_token_by_token_equals_a_full_forward[bart]"),
    ("query-stream-positions", "nn/transformer.py", "x.gather(1, target_positions)", "x[:, : target_positions.shape[1]]",
     "xlnet-XLNetLMHeadModel-permute"),
    ("query-stream-attends-to-itself", "model/inputs.py", "query = allowed.gather", "query = content.gather",
     "xlnet-XLNetLMHeadModel-permute"),
    ("content-stream-excludes-itself", "model/inputs.py", "allowed | torch.eye(", "allowed & ~torch.eye(",
     "xlnet-XLNetLMHeadModel-permute"),
    ("clip-not-normalized", "nn/network.py", "F.normalize(out[name], dim=-1)", "out[name]", "clip-CLIPModel"),
    ("clip-logit-scale-without-exp", "nn/network.py", "self.logit_scale.exp()", "self.logit_scale", "clip-CLIPModel"),
    ("clip-logits-transposed", "nn/network.py", 'out["scaled_image_embeds"] @ out["text_embeds"].T',
     'out["text_embeds"] @ out["scaled_image_embeds"].T', "clip-CLIPModel"),
    ("shift-right-does-not-wrap", "model/inputs.py", 'if mode == "wrap"', "if False", "mbart-MBartModel-shift"),
    ("shift-right-counts-padding", "model/inputs.py", "mask & (mask.cumsum(1) == 1)", "torch.ones_like(mask).cumsum(1) == 1",
     "families/parity:padded_row_equals_row_alone[mbart-MBartModel-shift]"),

    # loss
    ("causal-loss-labels-not-shifted", "model/loss.py", "labels = labels[..., 1:]", "labels = labels[..., :-1]",
     "model/loss:causal_loss_shifts_labels"),
    ("seq2seq-loss-shifted", "model/loss.py", "if spec.encoder is None:", "if True:",
     "model/loss:seq2seq_loss_matches_decoder_inputs"),
    ("loss-counts-ignored-labels", "model/loss.py", "labels.flatten()", "labels.flatten().clamp(min=0)",
     "model/loss:causal_loss_shifts_labels"),
    ("decoder-inputs-shifted-left", "model/loss.py", "tokens.roll(1, dims=-1)", "tokens.roll(-1, dims=-1)",
     "model/loss:seq2seq_loss_matches_decoder_inputs"),
    ("decoder-inputs-do-not-wrap", "model/loss.py", 'if shift.mode == "wrap"', "if False",
     "model/loss:seq2seq_loss_matches_decoder_inputs"),
    ("regression-loss-never-inferred", "model/loss.py", "if logits.shape[-1] == 1:", "if False:",
     "model/loss:classification_loss_follows_labels"),

    # heads
    ("lm-head-scale-missing", "nn/heads.py", "x * self.spec.scale", "x", "t5-T5ForConditionalGeneration"),
    ("mt5-lm-head-scaled", "families/t5.py", "scale_decoder_outputs and not multilingual", "scale_decoder_outputs",
     "mt5-MT5ForConditionalGeneration"),
    ("head-norm-before-activation", "nn/heads.py", "self.norm(self.activation(self.dense(x)))",
     "self.activation(self.norm(self.dense(x)))", "bert-BertForMaskedLM"),
    ("lm-head-not-tied", "nn/heads.py", "self.out.weight = token_embedding.weight",
     "self.out.weight = nn.Parameter(token_embedding.weight.detach().clone())", "bert-BertForMaskedLM"),
    ("final-logits-bias-missing", "families/bart.py", 'Literal["fixed"] = "fixed"', 'Literal["fixed"] = False',
     "bart-BartForConditionalGeneration"),
    ("final-logits-bias-trained", "nn/heads.py", "bias.requires_grad_(False)", "bias.requires_grad_(True)",
     "nn/heads:a_fixed_bias_is_never_trained"),
    ("pooling-first-column", "nn/heads.py", "gather_states(hidden, mask.int().argmax(1))", "hidden[:, 0]",
     "families/parity:padded_row_equals_row_alone[bert-BertModel]"),
    ("pooling-last-column", "nn/heads.py", "gather_states(hidden, last_true_index(mask))", "hidden[:, -1]",
     "families/parity:outputs_and_gradients_match_the_reference[gpt2-GPT2ForSequenceClassification-right-fp32]"),
    ("mean-pooling-includes-padding", "nn/heads.py", "(hidden * mask[..., None]).sum(1)", "hidden.sum(1)",
     "families/parity:padded_row_equals_row_alone[modernbert-ModernBertForSequenceClassification-mean]"),
    ("weighted-mean-includes-padding", "nn/heads.py", "mask.cumsum(1) * mask", "mask.cumsum(1)",
     "model/pooling:embedding_is_pooled_over_tokens_and_normalized[weightedmean]"),
    ("max-pooling-includes-padding", "nn/heads.py", "masked_fill(~mask[..., None].bool()", "masked_fill(~mask[:1, :1, None].bool()",
     "model/pooling:embedding_is_pooled_over_tokens_and_normalized[max]"),
    ("mean-sqrt-without-root", "nn/heads.py", "length.to(hidden.dtype).sqrt()", "length.to(hidden.dtype)",
     "tasks/sentence_transformers:every_pooling_mode[False-mean_sqrt_len_tokens]"),
    ("fairseq-positions-start-at-one", "model/foreign/fairseq_transformer.py", "POSITION_OFFSET = 2", "POSITION_OFFSET = 1",
     "model/fairseq_translation:names_of_every_version_are_read[new]"),
    ("fairseq-gpt2-ids-not-mapped", "model/foreign/tokenizer.py", "[tokens_by_word.get(word, word) for word in words]",
     "[*words[:4], *tokens_by_word.values(), *words[4 + len(tokens_by_word):]]", "model/fairseq_gpt2_bpe:tokenizer_of_bart"),
    ("camembert-pieces-shifted", "text/pipelines.py", "*_get_scores(model)[1:],", "*_get_scores(model)[3:],",
     "text/tokenizer:a_folder_with_only_a_sentencepiece_model_opens[camembert]"),
    ("marian-positions-of-hugging-face", "model/foreign/marian.py", 'sinusoidal="ends"', 'sinusoidal="halves"',
     "model/marian_files:an_opus_folder_agrees_with_transformers"),
    ("marian-weights-not-transposed", "model/foreign/marian.py", "else tensor.T", "else tensor",
     "model/marian_files:an_opus_folder_agrees_with_transformers"),
    ("patch-mean-includes-class-token", "nn/heads.py", "hidden[:, 1:].mean(1)", "hidden.mean(1)",
     "clip-CLIPForImageClassification"),
    ("eos-pooling-first-for-last", "nn/heads.py", "else last_true_index(is_eos)", "else is_eos.int().argmax(1)",
     "nn/heads:classification_reads_the_last_eos_token"),
    ("eos-pooling-last-for-first", "nn/heads.py", 'spec.pooling == "first_eos"', 'spec.pooling == "eos"',
     "clip-CLIPTextModel"),
    ("clip-eos-is-not-largest-id", "families/clip.py", 'if args["eos_token_id"] == 2', 'if args["eos_token_id"] == -2',
     "clip-CLIPTextModel-highest"),
    ("adaptive-softmax-wrong-cluster", "nn/heads.py", "self.cutoffs[1] + i - 1, None]", "self.cutoffs[1] + i - 2, None]",
     "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("adaptive-projections-always-tied", "nn/heads.py", "if spec.tie_projections[band]", "if True",
     "families/xl:outputs_and_gradients_match_the_reference[xl-base]"),
    ("answer-span-in-padding", "nn/heads.py", "start.masked_fill(~mask, torch.finfo(x.dtype).min)", "start",
     "families/parity:outputs_and_gradients_match_the_reference[xlnet-XLNetForQuestionAnswering-right-fp32]"),

    # attention weights
    ("attention-weights-without-bias", "nn/attention_record.py", "scores if bias is None else scores + bias",
     "scores", "model/positions:alibi_is_added_to_the_scores"),
    ("attention-weights-not-scaled", "nn/attention_record.py", "(self.q[:, heads, rows] * self.scale) @", "self.q[:, heads, rows] @",
     "families/original:attention_weights_match_the_reference[post]"),
    ("attention-weights-by-stored-layer", "nn/transformer.py", "layers.{depth}", "layers.{index}", "albert-AlbertModel"),
    ("attention-weights-always-first-depth", "attention_weights.py", "[*later, path]", "[path, *later]",
     "albert-AlbertModel"),
    ("attention-weights-path-prefix-matches", "attention_weights.py", ").fullmatch", ").match",
     "nn/attention_weights:look_records_only_matching_paths"),

    # recurrent stacks
    ("recurrent-gru-update-swapped", "nn/recurrent/cells.py", "new + update * (state[0] - new)",
     "state[0] + update * (new - state[0])", "nn/recurrent:a_model_follows_the_equations_of_its_paper[bahdanau]"),
    ("recurrent-cell-changes-at-padding", "nn/recurrent/cells.py", "column[: self.width] = -SATURATION",
     "column[: self.width] = 0", "nn/recurrent:a_model_follows_the_equations_of_its_paper[lstm-seq2seq]"),
    ("recurrent-source-not-reversed", "nn/recurrent/stack.py", "x = reverse_rows(x, rows.lengths) if is_backward else x",
     "x = x", "nn/recurrent:a_model_follows_the_equations_of_its_paper[lstm-seq2seq]"),
    ("recurrent-initial-state-of-other-direction", "nn/recurrent/stack.py", "final_states[:, -1, -1, 0]",
     "final_states[:, -1, 0, 0]", "nn/recurrent:a_model_follows_the_equations_of_its_paper[bahdanau]"),
    ("recurrent-no-input-feeding", "nn/recurrent/stack.py", "if self.attends_before else output",
     "if self.attends_before else start.output", "nn/recurrent:a_model_follows_the_equations_of_its_paper[luong-general-softmax-feeding]"),
    ("recurrent-documents-of-other-rows", "nn/recurrent/rows.py", "is_same.int().argmax(1)",
     "is_same.int().argmax(1) * 0", "nn/packed:a_packed_document_equals_the_document_alone[bahdanau]"),
    ("lstmn-attends-to-the-zero-state", "nn/recurrent/layers.py", "if hides_first and mask.shape[2] > 1:",
     "if False:", "nn/recurrent:a_model_follows_the_equations_of_its_paper[lstmn]"),

    # names tables
    ("conv1d-not-transposed-on-load", "weights/names_table.py", '"conv1d": (lambda x, n: x.T if x.dim() == 2 else x,',
     '"conv1d": (lambda x, n: x,', "gpt2-GPT2Model"),
    ("conv1d-not-transposed-on-save", "weights/names_table.py", "lambda x, n: x.T if x.dim() == 2 else x),",
     "lambda x, n: x),", "families/names:saved_tensors_and_config_equal_the_originals[gpt2-GPT2Model]"),
    ("fused-projections-reversed", "weights/names_table.py", "for i in sorted(", "for i in reversed(", "gpt2-GPT2Model"),
    ("xlnet-heads-transposed-on-load", "weights/names_table.py", "x.flatten(1).T,", "x.transpose(1, 2).flatten(1).T,",
     "xlnet-XLNetModel"),
    ("xlnet-heads-flipped-on-save", "weights/names_table.py", "x.unflatten(1, (n, -1))", "x.flip(1).unflatten(1, (n, -1))",
     "families/names:saved_tensors_and_config_equal_the_originals[xlnet-XLNetModel]"),
    ("ct2-last-positions-dropped", "weights/names_table.py", "lambda x, n: x[n:]", "lambda x, n: x[:-n]",
     "export/ctranslate2:outputs_are_equal_in_ctranslate2[bart]"),
    ("ct2-start-token-has-a-probability", "weights/names_table.py", "value=-1e4", "value=0.0",
     "model/ctranslate2_families:outputs_equal_those_of_ctranslate2[marian]"),
    ("ct2-scales-rounded-twice", "weights/formats/ctranslate2.py", "torch.tensor(127.0) / largest", "127.0 / largest",
     "export/ctranslate2:files_equal_those_of_the_converter[gpt2-int8]"),
    ("ct2-queries-scale", "model/foreign/ctranslate2_spec.py", "float(attention.scale)", "2 * float(attention.scale)",
     "export/ctranslate2:outputs_are_equal_in_ctranslate2[t5]"),
    ("alias-written", "weights/names_table.py", 'if operation != "alias"', "if True",
     "families/names:saved_tensors_and_config_equal_the_originals[bert-BertForMaskedLM]"),
    ("unused-tensor-with-leaf-unknown", "weights/names_table.py", "if parameter == UNUSED:", "if parameter == UNUSED and not match['leaf']:",
     "model/published:a_published_folder_opens[t5-small]"),
    ("alias-not-read", "model/parameters.py", "return aliases.get(mapping.parameter_names[0], mapping.checkpoint_name)",
     "return mapping.checkpoint_name", "model/published:a_published_folder_opens[madlad400-3b-mt]"),
    ("labels-of-config-json", "model/parameters.py", "if mapping.to_checkpoint(other_parameters).shape == tensor.shape",
     "if mapping.to_checkpoint(other_parameters).shape != tensor.shape", "model/load:the_tensor_decides_the_number_of_labels[names]"),
    ("classifier-of-another-head-copied", "model/transforms/heads.py", 'and ".out." not in name', "and True",
     "model/adapters:classifier_of_another_head_is_not_copied"),
)]
# fmt: on


class Result(NamedTuple):
    """The outcome of one mutant."""

    mutant: Mutant
    status: str  # caught, SURVIVED, or NOT RUN if the mutant is invalid
    detail: str  # the test that failed, or the last line of pytest's output
    seconds: float


def expand_test_id(test: str) -> str:
    """Return the pytest id of a test of the table."""
    module_path, colon, name = test.partition(":")
    if not colon:
        return f"tests/families/test_parity.py::test_outputs_and_gradients_match_the_reference[{test}-none-fp32]"
    folder, _, module = module_path.rpartition("/")
    return f"tests/{folder}/test_{module}.py::test_{name}"


def find_table_errors(table: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """Return one line per invalid row: `old` does not occur exactly once, or a test does not exist."""
    errors = []
    names = set()
    for row in table:
        path = root / "qkv" / row.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(row.old)) != 1:
            errors.append(
                f"{row.name}: {row.old!r} occurs {count} times in qkv/{row.file}, expected once"
            )
        elif row.old == row.new or row.name in names:
            errors.append(f"{row.name}: the row changes nothing, or its name is not unique")
        elif not is_valid_python(text.replace(row.old, row.new)):
            errors.append(f"{row.name}: invalid Python with {row.new!r} for {row.old!r}")
        for test in row.tests.split():
            test_file, _, test_name = expand_test_id(test).partition("::")
            test_path = root / test_file
            definition = f"def {test_name.partition('[')[0]}("
            if not test_path.is_file() or definition not in test_path.read_text(encoding="utf-8"):
                errors.append(f"{row.name}: test {test} does not exist")
        names.add(row.name)
    return errors


def is_valid_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def copy_repository(root: Path, folder: Path) -> None:
    """Copy the files that the tests need."""
    for name in COPIED_PATHS:
        if (root / name).is_dir():
            shutil.copytree(
                root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy2(root / name, folder / name)


def run_tests(folder: Path, module: str, tests: Sequence[str], timeout: int) -> tuple[int, str]:
    """Run pytest in a new process; return its exit status and output."""
    process = multiprocessing.get_context("forkserver").Process(
        target=pytest_process, args=(str(folder), module, [*PYTEST_OPTIONS, *tests])
    )
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
        return EXIT_TIMEOUT, f"more than {timeout} s"
    return process.exitcode or 0, (folder / "output.txt").read_text(encoding="utf-8")


def pytest_process(folder: str, module: str, arguments: list[str]) -> None:
    """Import the module from the folder, run pytest there and exit the process."""
    os.chdir(folder)
    with Path("output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name in [name for name in os.environ if name.startswith(("PYTEST", "CI", "BUILD_NUMBER"))]:
        del os.environ[name]  # in CI, pytest prints full differences, which are too long here
    os.environ["COLUMNS"] = "300"
    repository_paths = {str(ROOT), str(ROOT / "tools")}
    sys.path[:] = [folder, *(path for path in sys.path if path not in repository_paths)]
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED_PATHS]:
        del sys.modules[name]
    status = EXIT_NOT_RUN
    try:
        file = importlib.import_module(module).__file__ or ""
        if Path(file).is_relative_to(folder):
            status = importlib.import_module("pytest").main(arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(status)


def run_mutant(mutant: Mutant, base: Path, wide_tests: Sequence[str] = ()) -> Result:
    """Apply a mutant to a copy of `base` and run its tests, then the wider selection if it survives."""
    start = time.monotonic()
    module = "qkv." + mutant.file.removesuffix(".py").replace("/", ".")
    with TemporaryDirectory(prefix="mutant-") as temporary:
        folder = Path(temporary).resolve() / "copy"
        shutil.copytree(base, folder)
        path = folder / "qkv" / mutant.file
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        original = path.read_text(encoding="utf-8")
        path.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
        tests = [expand_test_id(test) for test in mutant.tests.split()]
        status, detail = classify_run(*run_tests(folder, module, tests, TIMEOUT))
        if status == "SURVIVED" and wide_tests:
            status, detail = classify_run(*run_tests(folder, module, wide_tests, WIDE_TIMEOUT))
            path.write_text(original, encoding="utf-8")
            if status == "caught" and run_tests(folder, module, [detail], TIMEOUT)[0]:
                status, detail = "SURVIVED", f"{detail} fails without a mutant too"
    return Result(mutant, status, detail, time.monotonic() - start)


def classify_run(exit_status: int, output: str) -> tuple[str, str]:
    """Return the status of a mutant and its detail from a run of pytest."""
    failed = re.search(r"^FAILED (tests/.+?)(?: - (.*))?$", output, re.MULTILINE)
    last_line = (output.strip().splitlines() or ["no output"])[-1]
    if exit_status in (0, EXIT_TIMEOUT):
        return "SURVIVED", last_line
    if exit_status != 1 or failed is None or re.match(INVALID_MUTANT_ERRORS, failed[2] or ""):
        return "NOT RUN", failed[0] if failed else last_line
    return "caught", failed[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every mutant was caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these mutants")
    parser.add_argument(
        "--jobs", type=int, choices=(1, 2), default=2, help="number of mutants at a time"
    )
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    options = parser.parse_args(arguments)
    table = [row for row in TABLE if not options.only or row.name in options.only]
    unknown = {*(options.only or ())} - {row.name for row in table}
    if options.list:
        for row in table:
            print(
                f"{row.name:<40} qkv/{row.file}\n    - {row.old}\n    + {row.new}\n    {row.tests}"
            )
    errors = [
        *find_table_errors(table),
        *(f"unknown mutant {name}; --list prints all" for name in sorted(unknown)),
    ]
    if errors:
        print("\n".join(errors))
    if errors or options.list:
        return int(bool(errors))

    start = time.monotonic()
    multiprocessing.set_forkserver_preload(
        PRELOADED_MODULES if len(table) > 1 else PRELOADED_MODULES[:-1]
    )
    with (
        TemporaryDirectory(prefix="unchanged-") as temporary,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        base = Path(temporary).resolve()
        copy_repository(ROOT, base)
        tests = sorted({expand_test_id(test) for row in table for test in row.tests.split()})
        print(f"running {len(tests)} tests without a mutant ...", flush=True)
        exit_status, output = run_tests(base, "qkv", tests, 2 * WIDE_TIMEOUT)
        if exit_status:
            print(f"{output}\nerror: these tests fail without a mutant")
            return 1
        wide_tests = [
            *(f"tests/{name.replace('/', '/test_')}.py" for name in WIDE_MODULES),
            "-k",
            "not fp64",
        ]
        futures = [pool.submit(run_mutant, row, base, wide_tests) for row in table]
        results = []
        for number, future in enumerate(as_completed(futures), 1):
            results.append(future.result())
            print_result(results[-1], number, len(table))
    missed = [
        f"{result.status}: {result.mutant.name}" for result in results if result.status != "caught"
    ]
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    summary = f"{len(table) - len(missed)} of {len(table)} caught ({minutes} min {seconds} s)"
    print("\n".join([*missed, summary]))
    return int(bool(missed))


def print_result(result: Result, number: int, total: int) -> None:
    line = (
        f"{number:>3}/{total}  {result.status:<8}  {result.mutant.name:<40}{result.seconds:>6.1f} s"
    )
    print(f"{line}  {result.detail}", flush=True)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    sys.exit(main())
