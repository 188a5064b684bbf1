"""Inputs of the pipelines: the cases of every task, each with a model, inputs and settings."""

from dataclasses import dataclass, field
from typing import Any

HOME = "Anna lives in a small house near the harbour of Lindau."
STORY = (
    "A lighthouse stands at the end of the pier; its lamp was lit in 1856. Every morning the old fisherman "
    "rows his boat across the quiet lake. The ferry to Bregenz leaves at nine and comes back before noon. In "
    "winter the mountains are white and the harbour is almost empty."
)
WHERE = {"question": "Where does Anna live?", "context": HOME}
WHEN = {"question": "When was the lamp lit?", "context": STORY}
NAMES = "Clara Schmidt and Peter Brown are waiting for the train to Zurich-West."
PLAYS = "Marie plays the violin in Geneva!"
RAIN = "It rained all week, so the children built a castle out of paper."
BREAD = "The baker's dog sleeps under the table while the bread is baking."
TOPICS = ["weather", "food and drink", "music"]


@dataclass(frozen=True)
class Case:
    """One call of a pipeline; `task` is its name if that differs from the name of the file."""

    model: str
    inputs: Any
    settings: dict[str, Any] = field(default_factory=dict)
    task: str | None = None
    writes: bool = False

    def row(self) -> dict[str, Any]:
        row = dict(model=self.model, inputs=self.inputs, settings=self.settings)
        return row | ({"task": self.task} if self.task else {})


def ask(model: str, inputs: Any, **settings: Any) -> Case:
    return Case(model, inputs, settings)


def write(model: str, inputs: Any, *, task: str | None = None, **settings: Any) -> Case:
    """Return a case with few new tokens; the default of pipelines is 256 tokens with four beams."""
    return Case(model, inputs, dict(max_new_tokens=12, num_beams=1) | settings, task, writes=True)


CASES: dict[str, list[Case]] = {
    "question-answering": [
        case
        for model in ("bert-span", "roberta-span")
        for case in (
            ask(model, WHERE),
            ask(model, WHERE, top_k=4),
            ask(model, WHERE, top_k=3, max_answer_len=2),
            ask(model, WHERE, top_k=3, align_to_words=False),
            ask(model, WHERE, handle_impossible_answer=True, top_k=8),
            ask(model, WHEN, max_seq_len=40, doc_stride=12, top_k=5),
            ask(model, WHEN, max_seq_len=64, doc_stride=32, max_answer_len=30, top_k=2),
            ask(model, WHEN, max_seq_len=40, doc_stride=12, handle_impossible_answer=True, top_k=8),
            ask(model, WHEN, max_seq_len=32, doc_stride=8, max_question_len=6, top_k=2),
            ask(model, [WHERE, {"question": "Who sleeps?", "context": BREAD}]),
        )
    ],
    "token-classification": [
        case
        for model in ("bert-tag", "roberta-tag")
        for case in (
            *(
                ask(model, [NAMES, PLAYS], aggregation_strategy=how)
                for how in ("none", "simple", "first", "average", "max")
            ),
            ask(model, NAMES, aggregation_strategy="simple", ignore_labels=[]),
            ask(model, NAMES, aggregation_strategy="none", ignore_labels=["O", "B-LOC"]),
            ask(model, STORY, aggregation_strategy="simple", stride=8),
            ask(model, STORY, aggregation_strategy="first", stride=16),
        )
    ],
    "fill-mask": [
        case
        for model, mask in (("bert", "[MASK]"), ("roberta", "<mask>"))
        for case in (
            ask(model, f"The old {mask} rows his boat."),
            ask(model, f"The {mask} is white.", top_k=3),
            ask(model, f"The {mask} is white.", targets=["boat", "lake", "the"]),
            ask(model, f"The {mask} is white.", targets=["lighthouse", " the"], top_k=1),
            ask(model, f"Anna {mask} in a small {mask}.", top_k=2),
            ask(model, [f"{mask} and Tom", f"a loaf of {mask}"], top_k=2),
        )
    ],
    "zero-shot-classification": [
        case
        for model in ("bert-label", "bart-label")
        for case in (
            ask(model, RAIN, candidate_labels=TOPICS),
            ask(model, RAIN, candidate_labels=TOPICS, multi_label=True),
            ask(model, BREAD, candidate_labels="food, children,travel", hypothesis_template="About {}."),
            ask(model, BREAD, candidate_labels=["food"]),
            ask(model, [RAIN, BREAD], candidate_labels=["weather", "animals"], multi_label=True),
        )
    ],
    "text-classification": [
        *(
            case
            for model in ("bert-label", "bert-score", "roberta-label")
            for case in (
                ask(model, [RAIN, BREAD]),
                ask(model, RAIN, function_to_apply="softmax", top_k=None),
                ask(model, RAIN, function_to_apply="sigmoid", top_k=None),
                ask(model, RAIN, function_to_apply="none", top_k=None),
            )
        ),
        ask("bert-label", RAIN, top_k=2),
        ask("bert-label", {"text": RAIN, "text_pair": "It rained."}, top_k=3),
        ask("roberta-label", STORY, truncation=True, max_length=20),
    ],
    "feature-extraction": [
        ask("bert", "The quiet lake."),
        ask("roberta", "The quiet lake."),
    ],
    "translation": [
        *(
            case
            for model in ("marian", "mbart", "t5")
            for names in [dict(src_lang="en_XX", tgt_lang="de_DE") if model == "mbart" else {}]
            for task in ["translation_en_to_de" if model == "t5" else "translation"]
            for case in (
                write(model, HOME, task=task, **names),
                write(model, [RAIN, PLAYS], task=task, num_beams=4, no_repeat_ngram_size=2, **names),
            )
        ),
        write("mbart", RAIN, task="translation", num_beams=2, src_lang="de_DE", tgt_lang="fr_XX"),
    ],
    "summarization": [
        case
        for model in ("bart", "t5")
        for case in (
            write(model, RAIN),
            write(model, [RAIN, BREAD], num_beams=4, length_penalty=2.0, early_stopping=True),
            write(model, STORY, num_beams=2, min_length=5, truncation=True),
        )
    ],
    "text2text-generation": [
        case
        for model in ("bart", "t5")
        for case in (
            write(model, HOME),
            write(model, HOME, num_beams=4, num_return_sequences=3),
            write(model, [HOME, "Why does the water look green?"], no_repeat_ngram_size=2),
            write(model, HOME, clean_up_tokenization_spaces=True),
        )
    ],
    "zero-shot-image-classification": [
        ask("clip", ["wide"], candidate_labels=["a boat", "the harbour", "bread"]),
        ask("clip", ["grey", "clear", "tall"], candidate_labels=["a green lake", "winter"]),
        ask("clip", ["palette"], candidate_labels=["dog", "lamp", "door"], hypothesis_template="It is a {}."),
    ],
}  # fmt: skip
