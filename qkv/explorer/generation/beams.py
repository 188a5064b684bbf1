"""Beam search as a tree: the candidates of every step, and the path of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qkv.decode import Engine, Result
from qkv.decode.request import BeamCandidate
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.model.stop_strings import build_stopping_criteria
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.network import Network
from qkv.tasks.write.base import GenerationTask
from qkv.validate import check_number

MAX_BEAMS = 16
MAX_TREE_DEPTH = 200


class BeamNode(NamedTuple):
    """A candidate of a step; `parent` is its place in the step before, -1 in the first step."""

    id: int
    text: str
    parent: int
    score: float  # sum of log-probabilities
    is_kept: bool  # it is continued, or is a hypothesis
    is_finished: bool


@dataclass(frozen=True, kw_only=True)
class BeamTree:
    """The candidates of every step, and the places of the best hypothesis in them."""

    steps: tuple[tuple[BeamNode, ...], ...]
    best: tuple[int, ...]
    output: str
    score: float  # sum of log-probabilities over length to the power of the length penalty
    notice: str | None = None  # what was cut, for the user

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [[node._asdict() for node in step] for step in self.steps],
            "best": self.best,
            "output": self.output,
            "score": self.score,
            "notice": self.notice,
        }


def search_beams(
    builder: InputBuilder, user_input: UserInput, num_beams: int, max_new_tokens: int
) -> BeamTree:
    """Search with `num_beams` beams and return the tree of its candidates."""
    builder.check_generation(user_input)
    check_number("num_beams", num_beams, integer=True, at_least=2, at_most=MAX_BEAMS)
    check_number("max_new_tokens", max_new_tokens, integer=True, at_least=1, at_most=MAX_TREE_DEPTH)
    task, request, notice = build_request(builder, user_input)
    settings = dict(num_beams=num_beams, num_return_sequences=1, do_sample=False)
    config = task.with_settings({**settings, "max_new_tokens": max_new_tokens}).generation_config
    net = view_in_evaluation_mode(builder.model.net)
    assert isinstance(net, Network)
    engine = Engine(net)
    steps: list[list[BeamCandidate]] = []
    engine.add_request(
        **request,
        generation_config=config,
        stopping_criteria=build_stopping_criteria(
            task.tokenizer, config.stop_strings, request.get("prompt", ())
        ),
        beam_callback=steps.append,
    )
    results: list[Result] | None = None
    while engine.has_unfinished_requests:
        for output in engine.step():
            results = output.get_results() or results
    assert results
    nodes = build_nodes(builder, steps, max_new_tokens, config.eos_token_id)
    token_ids = results[0].token_ids
    return BeamTree(
        steps=nodes[: len(token_ids)],
        best=find_path(nodes, token_ids),
        output=task.tokenizer.decode(token_ids, skip_special_tokens=True).strip(),
        score=results[0].score,
        notice=notice,
    )


def build_request(
    builder: InputBuilder, user_input: UserInput
) -> tuple[GenerationTask[Any, Any], dict[str, Any], str | None]:
    """Return the task, the arguments of its request to an engine, and a notice if the text was cut."""
    if builder.architecture == "encoder-decoder":
        source = builder.encode_source(user_input)
        return source.task, source.task.build_request(source.row), source.notice
    prompt, notice = builder.encode_prompt(user_input)
    return builder.complete_task, {"prompt": prompt}, notice


def build_nodes(
    builder: InputBuilder,
    steps: list[list[BeamCandidate]],
    max_new_tokens: int,
    eos_token_id: Sequence[int],
) -> tuple[tuple[BeamNode, ...], ...]:
    """Return the candidates of every step with their parents; a hypothesis of the last step that has no
    end token is cut, not finished."""
    place_of_beam: dict[int, int] = {0: -1}
    nodes = []
    for number, step in enumerate(steps, 1):
        texts = builder.labeler.get_different_texts([row.token_id for row in step])
        nodes.append(
            tuple(
                BeamNode(
                    id=row.token_id,
                    text=text,
                    parent=place_of_beam[row.beam],
                    score=row.score,
                    is_kept=row.next_beam is not None or row.is_hypothesis,
                    is_finished=row.is_hypothesis
                    and (number < max_new_tokens or row.token_id in eos_token_id),
                )
                for row, text in zip(step, texts, strict=True)
            )
        )
        place_of_beam = {
            row.next_beam: place for place, row in enumerate(step) if row.next_beam is not None
        }
    return tuple(nodes)


def find_path(nodes: tuple[tuple[BeamNode, ...], ...], token_ids: list[int]) -> tuple[int, ...]:
    """Return the places of the candidates that make up the result."""
    path: list[int] = []
    for step, token_id in zip(nodes, token_ids, strict=False):
        parent = path[-1] if path else -1
        path.append(
            next(
                place
                for place, node in enumerate(step)
                if node.parent == parent and node.id == token_id
            )
        )
    return tuple(path)
