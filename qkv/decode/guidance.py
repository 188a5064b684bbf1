"""Classifier-free guidance: a runner of every prompt and of its negative prompt, whose scores it combines.

    log p(negative prompt) + guidance_scale * (log p(prompt) - log p(negative prompt))

as in Hugging Face's generate (Sanchez et al. 2023). A row and its negative row get the same new tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from qkv.decode.runner import ModelRunner, PromptMoves, Prompts, RunnerOutput, Sources
from qkv.nn.network import Network


class GuidedRunner:
    """Runner of one row per prompt and one per negative prompt, each with a KV cache."""

    rows_per_prompt = 1

    def __init__(self, net: Network, guidance_scale: float, static_shapes: bool = False) -> None:
        self.guidance_scale = guidance_scale
        self.runner = ModelRunner(net, 1, static_shapes)
        self.negative_runner = ModelRunner(net, 1, static_shapes)
        self.device = self.runner.device
        self.max_positions = self.runner.max_positions

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput:
        """Run the network on new prompts; `sources` are their negative prompts."""
        no_sources = [None] * len(prompts)
        negative_prompts = [[*source] for source in sources if source is not None]
        output = self.runner.prefill(prompts, no_sources)
        return self.combine(output, self.negative_runner.prefill(negative_prompts, no_sources))

    def step(self, input_ids: Tensor) -> RunnerOutput:
        return self.combine(self.runner.step(input_ids), self.negative_runner.step(input_ids))

    def combine(self, output: RunnerOutput, negative_output: RunnerOutput) -> RunnerOutput:
        """Return the scores with guidance, and the hidden states of the prompts."""
        scores = output.logits.float().log_softmax(-1)
        negative_scores = negative_output.logits.float().log_softmax(-1)
        guided = negative_scores + self.guidance_scale * (scores - negative_scores)
        return RunnerOutput(guided, output.last_hidden_state)

    def duplicate_prompts(self, prompt_indices: list[int]) -> None:
        self.runner.duplicate_prompts(prompt_indices)
        self.negative_runner.duplicate_prompts(prompt_indices)

    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None:
        self.runner.remove_prompts(moves, num_remaining)
        self.negative_runner.remove_prompts(moves, num_remaining)

    def clear_prompts(self, prompt_indices: list[int]) -> None:
        self.runner.clear_prompts(prompt_indices)
        self.negative_runner.clear_prompts(prompt_indices)

    @contextmanager
    def restore_on_error(self) -> Iterator[None]:
        with self.runner.restore_on_error(), self.negative_runner.restore_on_error():
            yield

    def find_full_rows(self) -> list[int]:
        """Return no rows: a request with guidance ends with the positions of the network."""
        return []

    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None:
        raise AssertionError("guidance is for searches with one row per prompt")

    def replace_rows(self, rows: list[int], token_ids: Tensor) -> None:
        raise AssertionError("the rows of guidance are never full")
