"""Random command lines and recipes, from the real flags and keys with hostile values.

A command ends with an exit status of `qkv.cli.main`. Status 2 prints one line, `qkv: ` and the error,
and leaves no file behind; there is never a traceback, and no file outside of the current folder is
written."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tomlkit
import torch
from cyclopts import App

import qkv
import qkv.train.run  # commands import it on first use; forked processes need not
from qkv.cli import app, main
from qkv.families import get_family
from qkv.tasks.registry import TASK_CLASSES, get_task_class
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.recipe import MIN_WORKERS_LIMIT, OPEN_TABLES, TABLES
from tools.attack.case import Case

EXIT_STATUSES = (0, 2)
ERROR_PREFIX = "qkv: "
WARNING_PREFIX = "qkv: warning: "
MAX_ERROR_CHARACTERS = 5000
TIMEOUT = 30.0
WORDS = "the red cat sees a blue boat near the old green house".split()
# Command line words and, in recipes, also TOML values that are not what a setting expects.
HOSTILE_WORDS = (
    "", " ", "-", "--", "0", "1", "-1", "2", "1.5", "-0.0", "nan", "inf", "-inf", "1e400", "1e-400",
    "9" * 400, str(2**31), str(2**63 - 1), str(2**63), str(2**64), "-" + str(2**63), "0x10", "1_000",
    "true", "false", "null", "None", "[]", "[1]", "[[1, 2], [3]]", '["a"]', '["a", 1]', "{}", "{ a = 1 }",
    '{ a = "b" }', '""', "''", "'x'", '"', "1979-05-27", "1979-05-27T07:32:00Z", "a\x00b", "a\udcffb",
    "\x1b[31mred\x1b[0m", "a\nb", "a\tb", "\r", "\x7f", "../x", "/dev/null", "/dev/zero", "/dev/full",
    "/proc/self/mem", ".", "..", "missing", "missing.txt", "missing/folder", "fifo", "fifo.txt", "fifo.csv",
    "folder", "lines.txt", "records.jsonl", "binary.bin", "empty.txt", "latin.txt", "x" * 300, "x" * 100_000,
    "é", "日本語", "🙂", "\u202e", "%s", "{}", "{0}", "{question", "*", "[", "(", "a" * 40 + "(a+)+$",
    "builtin:x", "builtin:complete", "hf:x", "hf:a/b:c", "http://localhost/x", "a/b", "a/b/c", "-x", "--y",
    "@x", "cpu", "cpu:1", "cuda", "cuda:99", "meta", "mps", "xla", "auto", "fp16", "q", "layers.*", "mean",
    "label",
)  # fmt: skip
HOSTILE_VALUES: tuple[Any, ...] = (
    *HOSTILE_WORDS[:40], 0, 1, -1, 2, 1.5, -0.5, 1e-9, 1e30, float("inf"), float("nan"), 2**31, 2**63 - 1,
    10**30, True, False, [], {}, [1], [""], ["a", "b"], [[1]], [1.5, "a"], {"a": 1}, {"text": "text"},
    {"a": {"b": []}},
    "missing", "folder", "lines.txt", "fifo.txt", "meta", "cuda", "x" * 300, "\x1b[31m", "a\nb", "\x00",
)  # fmt: skip
PLAUSIBLE_VALUES: dict[Any, tuple[Any, ...]] = {
    int: (0, 1, 2, 3, 5, 7, 16, 100, 5000, -1, 2**31, 2**63 - 1, 2**63),
    float: (0.0, 0.1, 0.5, 0.999, 1.0, 2.0, 1e-12, 1e12, 1e300, -0.1),
    bool: (True, False),
    str: ("mean", "first", "error", "window", "file", "document", "csv", "jsonl", "lm", "masked-lm", "bpe",
          "unigram", "byte", "bert", "gpt", "t5", "linear", "noam", "constant", "muon", "adafactor", "bf16",
          "fp16", "tp", "fsdp", "rotary", "alibi", "none", "f1", "accuracy", "bleu", "models/fill",
          "lines.txt", "folder", "fifo.txt", "-", "../x", "cpu", "builtin:classify"),
}  # fmt: skip
ENDLESS_KEYS = ("steps", "epochs", "max_new_tokens")  # large values are valid and take long
ENDLESS_FROM = 1000

# task -> family and head of a tiny model
TASK_MODELS = {
    "classify": ("bert", "sequence-classification"), "tag": ("bert", "token-classification"),
    "fill": ("roberta", "masked-lm"), "answer": ("bert", "question-answering"), "embed": ("bert", "none"),
    "detect": ("electra", "replaced-token-detection"), "score": ("gpt2", "lm"), "complete": ("gpt2", "lm"),
    "translate": ("marian", "lm"), "summarize": ("bart", "lm"), "generative": ("t5", "lm"),
}  # fmt: skip
TEMPLATES = {
    "gpt2": "gpt",
    "roberta": "roberta",
    "marian": "seq2seq",
    "bart": "roberta",
    "t5": "t5",
}
SIZES = dict(
    width=16, depth=1, heads=2, ffn_width=24, decoder_depth=1, decoder_heads=2, decoder_ffn_width=24,
    head_dim=8, encoder_depth=1,
)  # fmt: skip
# objective -> family and further keys of its recipe
OBJECTIVE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "causal-lm": ("gpt2", {}), "segment-recurrent-lm": ("transformer-xl", {"data.unit": "file"}),
    "control-code-lm": ("ctrl", {}), "permutation-lm": ("xlnet", {}), "masked-lm": ("bert", {}),
    "masked-lm-sentence-pair": ("bert", {}), "replaced-token-detection": ("electra", {}),
    "distillation": ("distilbert", {"objective.teacher": "models/fill"}), "seq2seq": ("marian", {}),
    "denoising": ("bart", {}), "multilingual-denoising": ("mbart", {}), "span-corruption": ("t5", {}),
    "sentence-contrastive": ("bert", {}), "sequence-classification": ("bert", {}),
    "token-classification": ("bert", {}), "question-answering": ("bert", {}), "multiple-choice": ("bert", {}),
}  # fmt: skip
# objective -> task whose tiny model it trains further
PRETRAINED_MODELS = {
    "causal-lm": "complete", "masked-lm": "fill", "seq2seq": "translate", "denoising": "summarize",
    "sequence-classification": "classify", "token-classification": "tag", "question-answering": "answer",
}  # fmt: skip


def attack_commands(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Random flags and texts for every command."""
    write_shared_files(folder)
    commands = dict(list_commands(app))
    while True:
        arguments = make_command_line(rng, commands)
        stdin = rng.choice(("", "a text\nb\n", "text\nred\n", '{"text": "a"}\n', "\x00", "a\xff"))
        yield Case(
            name=describe_words(arguments),
            run=partial(run_command, folder, arguments, stdin),
            timeout=TIMEOUT,
            memory=3 << 30,
        )


def attack_recipes(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Random values of the keys of recipes, in the file and as flags."""
    write_shared_files(folder)
    while True:
        tables, flags, changes = make_recipe(rng)
        yield Case(
            name=describe_words(changes),
            run=partial(run_recipe, folder, tables, flags),
            timeout=TIMEOUT,
            memory=3 << 30,
        )


def describe_words(words: Sequence[str]) -> str:
    """Return words as one line for the name of a case."""
    return " ".join(
        word if word.isprintable() and " " not in word else repr(word) for word in words
    )[:300]


# --- files that cases share ---


def write_shared_files(folder: Path) -> None:
    """Write data files, one tiny model per task, and files that are not what they seem."""
    for name in TASK_CLASSES:
        get_task_class(name)
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=6)) for _ in range(60)]
    (folder / "lines.txt").write_text("".join(f"{line}.\n" for line in sentences))
    rows = [make_record(rng, sentence) for sentence in sentences]
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "binary.bin").write_bytes(bytes(range(256)))
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin.txt").write_bytes("Maß".encode("latin-1"))
    (folder / "folder").mkdir()
    for name in ("fifo", "fifo.txt", "fifo.csv"):
        os.mkfifo(folder / name)
    for name, (family, head) in TASK_MODELS.items():
        build_model(family, head, sentences).save(folder / "models" / name)


def make_record(rng: random.Random, sentence: str) -> dict[str, Any]:
    """Return a record with the columns of every objective."""
    words = sentence.split()
    return dict(
        text=f"{sentence}. {sentence}.", label=rng.choice(("x", "y")), words=words,
        tags=[rng.choice(("O", "B-A")) for _ in words], source=sentence, target=sentence[::-1],
        context=sentence, question=f"{words[0]}?", answers=[{"text": words[0], "answer_start": 0}],
        choices=["one", "two"], code="Links", language="en_XX",
    )  # fmt: skip


def build_model(family: str, head: str, texts: Sequence[str]) -> qkv.Model:
    """Return a tiny model with a trained tokenizer."""
    template = TEMPLATES.get(family, "bert")
    tokenizer = qkv.Tokenizer.train(texts, type="word", vocab_size=200, template=template)
    known = get_family(family).defaults
    sizes: dict[str, Any] = SIZES | dict(
        vocab_size=len(tokenizer), max_positions=48, embedding_width=16, head=head, num_labels=2,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    sizes = {name: value for name, value in sizes.items() if name in known and value is not None}
    if family not in ("electra", "albert"):
        sizes.pop("embedding_width", None)
    torch.manual_seed(0)
    model = qkv.build(family, device="cpu", **sizes)
    model.tokenizer = tokenizer
    return model


# --- command lines ---


def list_commands(parent: App, words: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    """Yield every command with its words, such as `tokenizer train`."""
    for name in parent:
        if name.startswith("-"):
            continue
        command = parent[name]
        if command.default_command is not None:
            yield " ".join((*words, name)), command
        yield from list_commands(command, (*words, name))


def make_command_line(rng: random.Random, commands: dict[str, App]) -> list[str]:
    """Return a command with a model, inputs and flags, of which some are hostile."""
    name = rng.choice([*commands])
    arguments = [*name.split(), *make_inputs(rng, name)]
    if name in TASK_CLASSES:
        models = (name, name, name, "generative", rng.choice([*TASK_MODELS]))
        arguments += ["--model", f"models/{rng.choice(models)}"]
    flags = [
        argument
        for argument in commands[name].assemble_argument_collection()
        if argument.index is None
    ]
    count = min(rng.choice((0, 1, 1, 2, 2, 3, 5)), len(flags))
    for argument in rng.sample(flags, count):
        names = [flag for flag in argument.names if flag.startswith("--")]
        if names and (names[0] not in arguments or rng.random() < 0.02):
            arguments += make_flag(rng, rng.choice(names), argument.hint)
    flags_of_command = {flag for argument in flags for flag in argument.names}
    if "--max-new-tokens" in flags_of_command and not any("max-new" in word for word in arguments):
        arguments += ["--max-new-tokens", "8"]
    if rng.random() < 0.05:
        rng.shuffle(arguments)
    if rng.random() < 0.03:
        arguments.insert(rng.randrange(len(arguments) + 1), rng.choice(HOSTILE_WORDS))
    return arguments


def make_inputs(rng: random.Random, command: str) -> list[str]:
    """Return positional arguments of a command: usual ones, hostile ones, or none."""
    text = rng.choice(
        ("the red cat sees", "the [MASK] cat", "the <mask> boat", "lines.txt", "records.jsonl", "-")
    )
    usual: dict[str, list[str]] = {
        "answer": ["red?", "--context", "the red cat"], "match": ["binary.bin", "lines.txt"], "families": [],
        "recipes": [], "show": [rng.choice(("gpt2", "models/score", "t5"))],
        "export": ["models/score", "out"], "merge": ["models/score", "--out", "out"],
        "new": [rng.choice(("classify", "complete")), "records.jsonl"],
        "train": ["recipe.toml"], "eval": ["models/classify", "--data", "records.jsonl"],
        "words train": ["lines.txt", "--min-count", "1"], "words near": ["cat"],
        "words analogy": ["a", "b", "c"], "words eval": ["lines.txt"],
        "words convert": ["lines.txt", "out.bin"],
        "tokenizer train": ["lines.txt", "--out", "tokenizer"], "tokenizer show": ["models/score", "the cat"],
    }  # fmt: skip
    inputs = usual.get(command, [text])
    if rng.random() < 0.35:
        return [rng.choice(HOSTILE_WORDS) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return inputs


def make_flag(rng: random.Random, flag: str, hint: Any) -> list[str]:
    """Return a flag with a value of its type, or with a hostile one."""
    members = get_args(hint) if type(None) in get_args(hint) else (hint,)
    usual: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            usual += [str(choice) for choice in get_args(member)]
        usual += {
            int: ["1", "2", "3"],
            float: ["0.5", "1.0"],
            Path: ["out.svg", "out", "out.npy"],
        }.get(member, [])
    if bool in members and rng.random() < 0.8:
        return [flag]
    value = rng.choice(usual if usual and rng.random() < 0.7 else HOSTILE_WORDS)
    if flag.strip("-").replace("-", "_") in ENDLESS_KEYS and is_endless(value):
        value = "3"
    return [f"{flag}={value}"] if rng.random() < 0.3 else [flag, value]


def is_endless(value: object) -> bool:
    """Return whether a number of steps or tokens is valid and takes too long."""
    with suppress(ValueError, TypeError, OverflowError):
        return float(value) >= ENDLESS_FROM  # type: ignore[arg-type]
    return False


# --- recipes ---


def list_recipe_keys(objective: str, family: str) -> list[str]:
    """Return every key of a recipe of an objective and a family."""
    keys = ["run", "device", *TABLES]
    for table, dataclass_type in TABLES.items():
        names = get_type_hints(dataclass_type)
        keys += [f"{table}.{name}" for name in names if name != OPEN_TABLES.get(table)]
    keys += [f"model.{name}" for name in get_family(family).defaults]
    spec = OBJECTIVE_SPECS[objective]
    settings = [
        name for name in get_type_hints(spec.build_objective) if name not in ("vocab", "return")
    ]
    return keys + [f"objective.{name}" for name in (*settings, *spec.extra_settings, "words")]


def list_key_types(family: str) -> dict[str, Any]:
    """Return the types of the keys of a recipe."""
    types: dict[str, Any] = {"run": str, "device": str}
    for table, dataclass_type in TABLES.items():
        hints = get_type_hints(dataclass_type)
        types |= {f"{table}.{name}": hint for name, hint in hints.items()}
    hints = get_type_hints(get_family(family).build_spec)
    return types | {f"model.{name}": hint for name, hint in hints.items()}


def make_recipe(rng: random.Random) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the tables of a small recipe with a few hostile values, flags with others, and what
    differs from a recipe that works."""
    objective = rng.choice([*OBJECTIVE_FAMILIES])
    family, further = OBJECTIVE_FAMILIES[objective]
    defaults = get_family(family).defaults
    sizes = {name: value for name, value in SIZES.items() if name in defaults}
    if "mem_len" in defaults:
        sizes["mem_len"] = 8
    tables: dict[str, Any] = {
        "model": {"family": family, **sizes},
        "tokenizer": {"type": "word", "vocab_size": 200},
        "data": {"train": "records.jsonl", "max_length": 24, "batch_size": 4},
        "objective": {"name": objective},
        "train": {"steps": 2},
    }
    if objective == "distillation":
        del tables["tokenizer"]
    for key, value in further.items():
        set_key(tables, key, value)
    if objective in PRETRAINED_MODELS and rng.random() < 0.25:
        tables["model"] = {"load": f"models/{PRETRAINED_MODELS[objective]}"}
        del tables["tokenizer"]
    keys = list_recipe_keys(objective, family)
    other = rng.choice([*OBJECTIVE_FAMILIES])
    keys += list_recipe_keys(other, OBJECTIVE_FAMILIES[other][0]) if rng.random() < 0.1 else []
    known_types = list_key_types(family)
    flags: list[str] = []
    changes = [objective]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        key = rng.choice(keys)
        is_flag = rng.random() < 0.5
        value = make_value(rng, known_types.get(key))
        if is_flag:
            value = json.dumps(value) if not isinstance(value, str) else value
        if key == "train.compile" or (key == "data.num_workers" and is_valid_workers(value)):
            continue  # compilation and the start of processes take too long
        if key.rpartition(".")[2] in ENDLESS_KEYS and is_endless(value):
            value = "2" if is_flag else 2
        if is_flag:
            flags += [f"--{key}={value}"] if rng.random() < 0.5 else [f"--{key}", value]
        else:
            set_key(tables, key, value)
        changes.append(f"{'--' * is_flag}{key}={value!r}"[:200])
    return tables, flags, changes


def is_valid_workers(value: object) -> bool:
    """Return whether a number of worker processes is valid and above 0."""
    with suppress(ValueError, TypeError, OverflowError):
        return 0 < float(value) <= MIN_WORKERS_LIMIT  # type: ignore[arg-type]
    return False


def make_value(rng: random.Random, hint: Any) -> Any:
    """Return a value of a type that a key may have but perhaps a useless one, or a hostile value."""
    for kind in (hint, *get_args(hint)) if rng.random() < 0.7 else ():
        if kind in PLAUSIBLE_VALUES:
            return rng.choice(PLAUSIBLE_VALUES[kind])
    return rng.choice(HOSTILE_VALUES)


def set_key(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of nested tables, unless its table was replaced by another value."""
    *parents, name = key.split(".")
    for parent in parents:
        tables = tables.setdefault(parent, {})
        if not isinstance(tables, dict):
            return
    tables[name] = value


# --- runs ---


def run_recipe(shared: Path, tables: dict[str, Any], flags: list[str], folder: Path) -> str | None:
    """Train the recipe in an empty folder; return what is wrong with the result."""
    try:
        text = tomlkit.dumps(tables)
    except (ValueError, TypeError, AttributeError):
        text = f"[model\n{tables!r}"
    with suppress(UnicodeEncodeError):
        (folder / "recipe.toml").write_text(text, encoding="utf-8")
    return run_command(shared, ["train", "recipe.toml", *flags], "the red cat\n" * 50, folder)


def run_command(shared: Path, arguments: list[str], stdin: str, folder: Path) -> str | None:
    """Run a command line in an empty folder; return what is wrong with the result."""
    torch.set_num_threads(1)  # a forked process has no threads of its parent
    for path in shared.iterdir():
        (folder / path.name).symlink_to(path)
    before = {*folder.iterdir()}
    shared_before = list_file_states(shared)
    (folder.parent / "stdin").write_bytes(stdin.encode("latin-1"))
    os.environ |= dict(HOME=str(folder), COLUMNS=str(random.Random(stdin).choice((1, 20, 100))))
    outputs = {1: folder.parent / "stdout.txt", 2: folder.parent / "stderr.txt"}
    with open(folder.parent / "stdin") as stream:
        os.dup2(stream.fileno(), 0)
    saved = {number: os.dup(number) for number in outputs}
    for number, path in outputs.items():
        with open(path, "wb") as stream:
            os.dup2(stream.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        status = main(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in saved.items():
            os.dup2(descriptor, number)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    error_text = outputs[2].read_text("utf-8", errors="replace")
    print(f"status {status}\n{error_text}")
    new_files = sorted(str(path.relative_to(folder)) for path in {*folder.iterdir()} - before)
    if arguments[:1] == ["train"]:
        new_files = [name for name in new_files if name.endswith(".tmp") or name.startswith(".")]
    if list_file_states(shared) != shared_before:
        return "a file outside of the current folder was written"
    return find_problem(status, error_text, new_files)


def list_file_states(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and time of every file of a folder."""
    states = {path: path.lstat() for path in folder.rglob("*")}
    return {str(path): (state.st_size, state.st_mtime_ns) for path, state in states.items()}


def find_problem(status: int, error_text: str, new_files: Sequence[str]) -> str | None:
    """Return what is wrong with the end of a command, or None."""
    if status not in EXIT_STATUSES:
        return f"exit status {status}, expected one of {EXIT_STATUSES}"
    if "Traceback" in error_text:
        return "a traceback"
    lines = [line for line in error_text.splitlines() if not line.startswith(WARNING_PREFIX)]
    if status == 2 and (len(lines) != 1 or not lines[0].startswith(ERROR_PREFIX)):
        return (
            f"{len(lines)} lines on standard error, expected one that begins with {ERROR_PREFIX!r}"
        )
    if status == 2 and (len(error_text) > MAX_ERROR_CHARACTERS or not lines[0].isprintable()):
        return "an error that is too long or has control characters"
    if status == 2 and new_files:
        return f"files after an error: {', '.join(new_files)}"
    return None
