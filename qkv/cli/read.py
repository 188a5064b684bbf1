"""Commands of the tasks that analyze texts and images. Torch is imported with the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkv.cli.decoding import DEFAULT_GENERATION, GenerationOptions
from qkv.cli.flags import BoolFlag, OutputPath, StrictInt, StringList, TextArgument, drop_none
from qkv.cli.inputs import DEFAULT_FILE, FileOptions, is_image_argument, is_text_file
from qkv.cli.options import DEFAULT_BUILTIN_MODEL, BuiltinModelOptions, ModelOptions
from qkv.cli.output import (
    format_score,
    print_json_lines,
    print_results,
    print_table,
    print_text,
    result_to_dict,
)
from qkv.staging import write_file

if TYPE_CHECKING:
    from qkv.tasks.base import Task


def prepare_inputs(
    name: str, arguments: Sequence[str], options: ModelOptions, file: FileOptions, **settings: Any
) -> tuple[Task[Any, Any], list[str]]:
    """Return a task and its inputs: texts, or the paths of images if the model reads images."""
    images = [argument for argument in arguments if is_image_argument(argument)]
    texts = [] if images else file.read_texts(arguments)
    task = options.make_task(name, **settings)
    if not task.reads_text:
        return task, list(arguments)
    for image in images:
        if is_text_file(image):  # which raises an error about a folder
            model = options.model or "the built-in model"
            raise ValueError(
                f"{image}: an image, but {model} reads texts; expected a model of images"
            )
    return task, texts


def classify(
    *texts: TextArgument,
    options: BuiltinModelOptions = DEFAULT_BUILTIN_MODEL,
    file: FileOptions = DEFAULT_FILE,
    top_k: StrictInt = 5,
    candidate_labels: StringList = (),
    hypothesis_template: str | None = None,
    multi_label: BoolFlag = False,
) -> None:
    """Classify texts or images; with --candidate-labels, texts zero-shot by an entailment (NLI) model.

    qkv classify "A fine film."

    qkv classify picture.png --model google/vit-base-patch16-224

    Parameters
    ----------
    texts
        text, file with one text per line, or - for standard input; image files for a model of images
    top_k
        number of labels to print
    candidate_labels
        labels for zero-shot classification: --candidate-labels sports politics "food and drink"
    hypothesis_template
        hypothesis into which a candidate label is inserted; default: This example is {}.
    multi_label
        score each candidate label independently; several may apply
    """
    if options.show_card:
        return options.print_card("classify")
    for flag, is_used in (
        ("--multi-label", multi_label),
        ("--hypothesis-template", hypothesis_template is not None),
    ):
        if is_used and not candidate_labels:
            raise ValueError(f"{flag} is for zero-shot classification: also set --candidate-labels")
    zero_shot_settings = drop_none(
        candidate_labels=candidate_labels or None,
        multi_label=multi_label or None,
        hypothesis_template=hypothesis_template,
    )
    task, input_texts = prepare_inputs(
        "classify", texts, options, file, top_k=top_k, **zero_shot_settings
    )
    results = options.run_task(task, input_texts)
    column = "text" if task.reads_text else "image"
    if options.as_json:
        from qkv.tasks.read.classify import Classification

        return print_json_lines(
            {column: text, **result_to_dict(result, Classification)}
            for text, result in zip(input_texts, results, strict=True)
        )
    if len(input_texts) == 1:
        candidates = () if results[0] is None else results[0].candidates
        return print_table(
            "label score",
            [(candidate.label, format_score(candidate.score)) for candidate in candidates],
        )
    print_table(
        f"label score {column}",
        [
            ("", "", "") if result is None else (result.label, format_score(result.score), text)
            for text, result in zip(input_texts, results, strict=True)
        ],
    )


def tag(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = None,
    stride: StrictInt | None = None,
) -> None:
    """Tag the named entities of texts, with their character offsets, or every frame of clips.

    qkv tag "Clara lives in Zurich." --model dslim/bert-base-NER

    qkv tag clip.gif --model runs/mnist-clips/best

    Parameters
    ----------
    texts
        text, file with one text per line, or - for standard input; for a model of clips, animated images
        (GIF, WebP, PNG) or folders of frames
    aggregation
        none: tokens; simple: entities; first (the default), average, max: entities of whole words
    stride
        number of tokens by which the windows of a long text overlap
    """
    settings = drop_none(aggregation=aggregation, stride=stride)
    task, input_texts = prepare_inputs("tag", texts, options, file, **settings)
    results = options.run_task(task, input_texts)
    if not task.reads_text:
        return print_results(
            options.as_json,
            input_texts,
            results,
            "frames",
            "frame label score",
            lambda frame: (frame.frame, frame.label, format_score(frame.score)),
            input_key="clip",
        )
    print_results(
        options.as_json,
        input_texts,
        results,
        "entities",
        "label score start end entity",
        lambda entity: (
            entity.label,
            format_score(entity.score),
            entity.start,
            entity.end,
            entity.text,
        ),
    )


def fill(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    top_k: StrictInt = 5,
    targets: StringList = (),
) -> None:
    """Fill the mask tokens of texts; several masks in a text are predicted independently.

    qkv fill "Paris is the [MASK] of France." --model bert-base-uncased

    Parameters
    ----------
    texts
        text, file with one text per line, or - for standard input
    top_k
        number of predictions per mask
    targets
        restrict the predictions to these words
    """
    input_texts = file.read_texts(texts)
    results = options.run_task(options.make_task("fill", top_k=top_k, targets=targets), input_texts)
    if options.as_json:
        from qkv.tasks.read.fill import FillResult

        rows_by_text = [result_to_dict(result, FillResult) for result in results]
        return print_json_lines(
            row | {"text": text, "filled": row["text"]}
            for text, row in zip(input_texts, rows_by_text, strict=True)
        )
    filled = [result for result in results if result is not None]
    has_one_mask = all(len(result.masks) == 1 for result in filled)
    rows = [
        (number, format_score(candidate.score), candidate.token_str, candidate.sequence)
        for result in filled
        for number, mask in enumerate(result.masks, 1)
        for candidate in mask.candidates
    ]
    if has_one_mask:
        return print_table("score word text", [row[1:] for row in rows])
    print_table("mask score word text", rows)
    for result in results:
        print_text("" if result is None else result.text)


def answer(
    question: TextArgument,
    /,
    *,
    context: TextArgument | None = None,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    generation: GenerationOptions = DEFAULT_GENERATION,
    generative: bool | None = None,
    template: str | None = None,
    top_k: StrictInt | None = None,
    max_answer_tokens: StrictInt | None = None,
    allow_no_answer: BoolFlag = False,
    stride: StrictInt | None = None,
) -> None:
    """Answer a question about a context: extractive, or generative by an encoder-decoder.

    qkv answer "Who wrote it?" --context article.txt --model distilbert-base-cased-distilled-squad

    Parameters
    ----------
    question
        question, or file with one question per line or record
    context
        file with the context, - for standard input, or the context itself; default: the column
        context of a file of questions
    generative
        generate the answer, or extract it; default: determined by the model
    template
        input of a generative model: a text with {question} and {context}
    top_k
        number of answers
    max_answer_tokens
        maximum number of tokens of an answer
    allow_no_answer
        allow the empty answer (SQuAD 2.0)
    stride
        number of tokens by which the windows of a long context overlap
    """
    questions = file.read_questions(question, context)
    settings = drop_none(top_k=top_k, max_answer_tokens=max_answer_tokens, template=template)
    settings |= generation.settings
    task = options.make_task(
        "answer", generative=generative, allow_no_answer=allow_no_answer, stride=stride, **settings
    )
    results = options.run_task(task, questions)
    if options.as_json:
        from qkv.tasks.read.answer import AnswerResult

        return print_json_lines(
            {"question": text, **result_to_dict(result, AnswerResult)}
            for (text, _), result in zip(questions, results, strict=True)
        )
    rows = [
        (
            number,
            format_score(candidate.score),
            "" if candidate.start is None else candidate.start,
            "" if candidate.end is None else candidate.end,
            candidate.text or "(no answer)",
        )
        for number, result in enumerate(results, 1)
        if result is not None
        for candidate in result.candidates
    ]
    if len(questions) == 1:
        return print_table("score start end answer", [row[1:] for row in rows])
    print_table("# score start end answer", rows)


def embed(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    out: OutputPath | None = None,
    pooling: Literal[
        "mean", "first", "last", "max", "mean_sqrt_len_tokens", "weightedmean", "pooler_output"
    ]
    | None = None,
    normalize: bool | None = None,
) -> None:
    """Embed each text as a vector, and write the vectors as a numpy array.

    qkv embed sentences.txt --model sentence-transformers/all-MiniLM-L6-v2 --out vectors.npy

    Parameters
    ----------
    texts
        text, file with one text per line, or - for standard input
    out
        .npy file to write, of shape (texts, width); the vector of a blank text is zero
    pooling
        pooling of the hidden states; default: that of the model folder
    normalize
        scale the vectors to unit length; default: that of the model folder
    """
    if (out is None) != options.as_json:
        raise ValueError("expected either --out and a file to write, or --json")
    if out is not None:
        if not out.parent.is_dir():
            raise ValueError(f"--out {out}: no folder {out.parent}, expected an existing folder")
        if out.exists():
            raise ValueError(f"--out {out}: already exists; expected a new file")
        if out.suffix != ".npy":
            raise ValueError(f"--out {out}: expected a file name that ends with .npy")
    input_texts = file.read_texts(texts)
    task = options.make_task("embed", pooling=pooling, normalize=normalize)
    results = options.run_task(task, input_texts)
    if out is None:
        return print_json_lines(
            {"text": text, "vector": [] if vector is None else vector.tolist()}
            for text, vector in zip(input_texts, results, strict=True)
        )
    import numpy as np

    width = max((len(vector) for vector in results if vector is not None), default=0)
    vectors = np.stack([np.zeros(width, np.float32) if row is None else row for row in results])
    with write_file(out, exist_ok=False) as temporary:
        np.save(temporary, vectors)
    print(f"wrote {out}: {vectors.shape[0]:,} × {vectors.shape[1]:,}")


def match(
    image: Path,
    labels_file: Path,
    /,
    *,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    hypothesis_template: str = "{}",
    top_k: StrictInt = 5,
) -> None:
    """Match an image with texts: zero-shot image classification by CLIP.

    qkv match image.png labels.txt --model openai/clip-vit-base-patch32

    Parameters
    ----------
    image
        image file
    labels_file
        file with one text per line or record; blank lines are skipped
    hypothesis_template
        text into which each label is inserted
    top_k
        number of texts to print
    """
    if not is_text_file(str(labels_file)):
        raise ValueError(f"{labels_file}: no such file; expected a file with one text per line")
    labels = [label for label in file.read_texts([str(labels_file)]) if label.strip()]
    task = options.make_task(
        "match", candidate_labels=labels, hypothesis_template=hypothesis_template, top_k=top_k
    )
    (result,) = options.run_task(task, [image])
    if options.as_json:
        from qkv.tasks.read.classify import Classification

        return print_json_lines([{"image": str(image), **result_to_dict(result, Classification)}])
    print_table(
        "label score",
        [(candidate.label, format_score(candidate.score)) for candidate in result.candidates],
    )


def detect(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    threshold: float = 0.5,
) -> None:
    """Detect replaced tokens of texts, by an ELECTRA discriminator.

    qkv detect "The chef ate the meal." --model google/electra-small-discriminator

    Parameters
    ----------
    texts
        text, file with one text per line, or - for standard input
    threshold
        minimum score of a replaced token
    """
    input_texts = file.read_texts(texts)
    results = options.run_task(options.make_task("detect", threshold=threshold), input_texts)
    if not options.as_json:
        results = [[token for token in tokens or () if token.is_replaced] for tokens in results]
    print_results(
        options.as_json,
        input_texts,
        results,
        "tokens",
        "score start end replaced",
        lambda token: (format_score(token.score), token.start, token.end, token.text),
    )


def score_text(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    stride: StrictInt | None = None,
    show_tokens: BoolFlag = False,
) -> None:
    """Score texts: perplexity and log-probability; each file is one text.

    qkv score text.txt --model gpt2

    Parameters
    ----------
    texts
        file, - for standard input, or the text itself; in a file with columns, each record is one
        text
    stride
        number of tokens by which the windows of a long text overlap
    show_tokens
        also print the log-probability of each token
    """
    input_texts = file.read_documents(texts)
    results = options.run_task(options.make_task("score", stride=stride), input_texts)
    if options.as_json:
        from qkv.tasks.read.score import TextScore

        return print_json_lines(
            {"text": text, **result_to_dict(result, TextScore)}
            for text, result in zip(input_texts, results, strict=True)
        )
    rows = [
        ("", "", "", "")
        if result is None
        else (f"{result.perplexity:.4g}", format_score(result.score), len(result.tokens), text)
        for text, result in zip(input_texts, results, strict=True)
    ]
    if len(rows) == 1:
        print_table("perplexity log-probability tokens", [rows[0][:3]])
    else:
        print_table("perplexity log-probability tokens text", rows)
    for result in results if show_tokens else ():
        token_rows = [
            (
                "" if token.score is None else f"{token.score:.4f}",
                token.start,
                token.end,
                token.text,
            )
            for token in (() if result is None else result.tokens)
        ]
        print_table("log-probability start end token", token_rows)
