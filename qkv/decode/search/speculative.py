"""Speculative decoding (Leviathan et al. 2022): a draft model proposes, the target model verifies.

The output is that of the target model alone: the same tokens in greedy search, the same
distribution in sampling. P rows, g draft tokens per row, V vocabulary size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.context_window import slide_windows
from qkv.decode.logits.processors import LogitsContext
from qkv.decode.logits.sampling import hash_uniform, sample_tokens
from qkv.decode.request import Request, RequestGroup, RequestOutput, Result
from qkv.decode.runner import ModelRunner, PromptMoves, Prompts, RunnerOutput, Sources
from qkv.decode.running_batch import BatchOutcome, RunningBatch

# Independent streams of random numbers.
DRAFT_STREAM = 1
ACCEPT_STREAM = 2
RESIDUAL_STREAM = 3


class SpeculativeRunner:
    """The runners of the target model and of the draft model, with the same rows."""

    rows_per_prompt = 1

    def __init__(self, target_runner: ModelRunner, draft_runner: ModelRunner) -> None:
        self.target_runner = target_runner
        self.draft_runner = draft_runner
        self.device = target_runner.device
        self.max_positions = target_runner.max_positions

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput:
        """Run both models on new prompts; the output is the target's."""
        self.draft_runner.prefill(prompts, sources)
        return self.target_runner.prefill(prompts, sources)

    def duplicate_prompts(self, prompt_indices: list[int]) -> None:
        self.draft_runner.duplicate_prompts(prompt_indices)
        self.target_runner.duplicate_prompts(prompt_indices)

    def step(self, input_ids: Tensor) -> RunnerOutput:
        return self.target_runner.step(input_ids)

    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None:
        self.draft_runner.reorder_rows(parents, token_ids, shared_length)
        self.target_runner.reorder_rows(parents, token_ids, shared_length)

    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None:
        self.draft_runner.remove_prompts(moves, num_remaining)
        self.target_runner.remove_prompts(moves, num_remaining)

    def clear_prompts(self, prompt_indices: list[int]) -> None:
        self.draft_runner.clear_prompts(prompt_indices)
        self.target_runner.clear_prompts(prompt_indices)

    @contextmanager
    def restore_on_error(self) -> Iterator[None]:
        with self.draft_runner.restore_on_error(), self.target_runner.restore_on_error():
            yield

    def find_full_rows(self) -> list[int]:
        return self.target_runner.find_full_rows()

    def replace_rows(self, rows: list[int], token_ids: Tensor) -> None:
        self.draft_runner.replace_rows(rows, token_ids)
        self.target_runner.replace_rows(rows, token_ids)


class SpeculativeBatch(RunningBatch):
    """A batch of one group, whose rows may get several tokens in a step."""

    def __init__(self, target_runner: ModelRunner, draft_runner: ModelRunner) -> None:
        self.speculative_runner = SpeculativeRunner(target_runner, draft_runner)
        super().__init__(self.speculative_runner)

    def step(self) -> BatchOutcome:
        """Propose draft tokens; append those that the target accepts, and one token of the target."""
        (group,) = self.groups.values()
        slide_windows(self.speculative_runner, group.requests, self.row_tensors["token_ids"])
        errors = PositionErrors(group.requests)
        draft = self.propose_draft(group, self.build_context(group, None), errors)
        input_ids = torch.cat([self.row_tensors["next_input_ids"][:, None], draft.token_ids], dim=1)
        output = self.speculative_runner.target_runner.step(input_ids)
        step_scores = []
        for i, context in enumerate(draft.contexts):
            step_scores.append(group.process_logits(output.logits[:, i], context))
            errors.record(i)
        scores = torch.stack(step_scores, dim=1)  # (P, g + 1, V)
        accept = accept_by_rejection_sampling if group.config.do_sample else accept_greedy
        token_ids, num_accepted = accept(group, scores, draft)
        log_probs = scores.log_softmax(-1).gather(2, token_ids[..., None])[..., 0]
        return self.accept_tokens(group, token_ids, log_probs, num_accepted, errors)

    def propose_draft(
        self, group: RequestGroup, context: LogitsContext, errors: PositionErrors
    ) -> DraftTokens:
        """Generate num_assistant_tokens tokens with the draft model.

        Its cache may lack the last token but one, so the last two tokens are processed again."""
        runner = self.speculative_runner.draft_runner
        draft = DraftTokens(context)
        runner.truncate([request.window_length - 2 for request in group.requests])
        input_ids = context.get_last_token_ids(2)
        for i in range(group.config.num_assistant_tokens):
            logits = runner.step(input_ids).logits
            last_logits = logits[:, -1] if logits.dim() == 3 else logits
            scores = group.process_logits(last_logits, draft.contexts[-1])
            errors.record(i)
            if group.config.do_sample:
                step = group.to_tensor(
                    [len(request.new_token_ids) + i for request in group.requests]
                )
                token_ids = sample_tokens(
                    scores, hash_uniform(group.state["seed"], step, DRAFT_STREAM)
                )
            else:
                token_ids = scores.argmax(-1)
            draft.add(token_ids, scores)
            input_ids = token_ids[:, None]
        return draft

    def accept_tokens(
        self,
        group: RequestGroup,
        token_ids: Tensor,
        log_probs: Tensor,
        num_accepted: Tensor,
        errors: PositionErrors,
    ) -> BatchOutcome:
        """Append the accepted draft tokens of every row and one token of the target model."""
        rows = torch.stack([token_ids.double(), log_probs.double()], dim=-1).tolist()
        group.fail_invalid_requests(group.state["is_invalid"].tolist())
        outputs: list[RequestOutput] = []
        finished: list[tuple[Request, list[Result]]] = []
        for request, row, count in zip(group.requests, rows, num_accepted.tolist(), strict=True):
            num_before = len(request.new_token_ids)
            num_valid = self.count_valid_tokens(request)
            for i, (token_id, log_prob) in enumerate(row[: min(count + 1, num_valid)]):
                errors.apply(request, i)
                if request.error is not None:
                    break
                reason = request.append_token(int(token_id), log_prob)
                if reason is not None:
                    finished.append((request, [request.build_result(reason)]))
                    break
            outputs.append(request.build_output(len(request.new_token_ids) - num_before))
        tensors = self.row_tensors
        steps = torch.arange(token_ids.shape[1], device=self.runner.device)
        columns = steps + tensors["length"][:, None]
        padding = max(0, int(columns.max()) + 1 - tensors["token_ids"].shape[1])
        tensors["token_ids"] = F.pad(tensors["token_ids"], (0, padding))
        tensors["token_ids"].scatter_(1, columns, token_ids)
        tensors["length"] = group.to_tensor([request.length for request in group.requests])
        last_columns = tensors["length"][:, None] - 1
        tensors["next_input_ids"] = tensors["token_ids"].gather(1, last_columns)[:, 0]
        self.speculative_runner.target_runner.truncate(
            [request.window_length - 1 for request in group.requests]
        )
        return self.end_step(outputs, finished)

    def count_valid_tokens(self, request: Request) -> int:
        """Return the number of tokens of a step that the positions of the target model allow."""
        max_positions = self.speculative_runner.max_positions
        if max_positions is None:
            return request.config.num_assistant_tokens + 1
        return max_positions - (request.window_length - 1)


class PositionErrors:
    """Errors of the users' functions by position; those after the last new token have no effect."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.errors: dict[Request, tuple[int, Exception]] = {}

    def record(self, position: int) -> None:
        """Take the errors of the requests that occurred at a position."""
        for request in self.requests:
            if request.error is not None:
                earliest, _ = self.errors.get(request, (position, None))
                if position <= earliest:
                    self.errors[request] = position, request.error
                request.error = None

    def apply(self, request: Request, position: int) -> None:
        """Set the error of a request if it occurred at this position."""
        error_position, error = self.errors.get(request, (-1, None))
        if position == error_position:
            request.error = error


class DraftTokens:
    """Draft tokens with their scores, and the contexts before each of them and after the last."""

    def __init__(self, context: LogitsContext) -> None:
        self.contexts = [context]
        self.step_token_ids: list[Tensor] = []  # (P,) each
        self.step_scores: list[Tensor] = []  # (P, V) each

    def add(self, token_ids: Tensor, scores: Tensor) -> None:
        """Append the draft tokens (P,) of a step."""
        self.step_token_ids.append(token_ids)
        self.step_scores.append(scores)
        self.contexts.append(self.contexts[-1].append_tokens(token_ids))

    @property
    def token_ids(self) -> Tensor:
        """(P, g) all draft tokens."""
        return torch.stack(self.step_token_ids, dim=1)


def accept_greedy(group: RequestGroup, scores: Tensor, draft: DraftTokens) -> tuple[Tensor, Tensor]:
    """Return the target's most likely tokens (P, g + 1) and the number of matches (P,)."""
    token_ids = scores.argmax(-1)
    return token_ids, count_leading_true(token_ids[:, :-1] == draft.token_ids)


def accept_by_rejection_sampling(
    group: RequestGroup, scores: Tensor, draft: DraftTokens
) -> tuple[Tensor, Tensor]:
    """Accept draft tokens with probability p/q; sample from p - q after the last accepted one.

    Returns tokens (P, g + 1) and the number of accepted draft tokens (P,)."""
    p = scores.softmax(-1)
    q = torch.stack(draft.step_scores, dim=1).softmax(-1)
    num_steps = draft.token_ids.shape[1] + 1
    steps = group.to_tensor(
        [[len(request.new_token_ids) + i for i in range(num_steps)] for request in group.requests]
    )
    seeds = group.state["seed"][:, None].expand_as(steps)
    ratio = (p[:, :-1] / q).gather(2, draft.token_ids[..., None])[..., 0]
    is_accepted = hash_uniform(seeds[:, :-1], steps[:, :-1], ACCEPT_STREAM) < ratio
    num_accepted = count_leading_true(is_accepted)
    residual = (p - F.pad(q, (0, 0, 0, 1))).clamp(min=0)  # q is 0 after the last draft token
    index = num_accepted[:, None]
    residual = residual.gather(1, index[..., None].expand(-1, 1, residual.shape[2]))[:, 0]
    uniform_values = hash_uniform(seeds.gather(1, index), steps.gather(1, index), RESIDUAL_STREAM)[
        :, 0
    ]
    last_token_ids = sample_tokens(residual.log(), uniform_values)
    token_ids = F.pad(draft.token_ids, (0, 1)).scatter(1, index, last_token_ids[:, None])
    return token_ids, num_accepted


def count_leading_true(flags: Tensor) -> Tensor:
    """Count the true flags of each row before the first false one: (P, g) -> (P,)."""
    return flags.long().cumprod(1).sum(1)
