"""Build the sdist and the wheel in dist/, and test the wheel in a new environment.

    python -m tools.release.dist [--no-install] [--out DIR]

Everything is built twice and must have the same bytes; the sdist must build the same wheel; the wheel must
contain the files of qkv/ and no others. A bill of materials (CycloneDX) and the SHA-256 of the files are
written next to them. The time stamp of the files is SOURCE_DATE_EPOCH, or the time of the last commit."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tools.release.licenses import FILE as LICENSES
from tools.release.licenses import ROOT, format_page
from tools.release.sbom import write_sbom

SUFFIXES = {".py", ".json", ".md", ".safetensors", ".toml", ".html", ".js", ".css", ".typed"}
REQUIRED = (
    "qkv/py.typed", "qkv/pictures/page.html", "qkv/explorer/page/main.js", "qkv/recipes/shakespeare.toml",
    "qkv/builtin/german_english.json",
    *(f"qkv/builtin/{task}/model.safetensors" for task in ("classify", "complete", "translate")),
)  # fmt: skip
SDIST_ONLY = (
    "tests/conftest.py",
    "requirements/library.txt",
    "LICENSES.md",
    "Makefile",
    "docs/index.md",
)
TRAINING_DATA = "text\tlabel\n" + "good film\tpos\nbad film\tneg\n" * 20
# Commands of the installed wheel, and what their outputs contain.
COMMANDS = {
    ("--version",): "{version}",
    ("translate", "Wo ist der Bahnhof?"): "Where is the station?",
    ("classify", "A wonderful film, I loved every minute of it."): "positive",
    ("complete", "ROMEO:", "--max-new-tokens", "5"): "ROMEO:",
    ("look", "Wo ist der Bahnhof?", "--save", "page.html"): "",
    ("recipes",): "shakespeare",
    ("recipes", "shakespeare"): "[train]",
    ("families",): "bert",
    ("train", "small/sequence-classification", "--data.train", "train.tsv", "--train.steps", "3",
     "--train.warmup_steps", "1", "--run", "run", "--device", "cpu"): "",
    ("classify", "good film", "--model", "run/last"): "",
}  # fmt: skip


def get_timestamp() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the last commit."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "log", "-1", "--format=%ct"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ValueError("no git history: set SOURCE_DATE_EPOCH, the time stamp of the files")
    return int(result.stdout)


def build(source: Path, out: Path, timestamp: int, *options: str) -> list[Path]:
    """Build the sdist and the wheel of a source folder; return the files."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *options]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(timestamp)}
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    return sorted(out.iterdir())


def build_twice(out: Path, timestamp: int) -> tuple[Path, Path]:
    """Build the sdist and the wheel, and the wheel of the sdist; return the sdist and the wheel."""
    wheel, sdist = sorted(build(ROOT, out, timestamp), key=lambda file: file.suffix != ".whl")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        again = build(ROOT, folder / "again", timestamp)
        (folder / "source").mkdir()
        subprocess.run(["tar", "-xzf", str(sdist), "-C", str(folder / "source")], check=True)
        source = next((folder / "source").iterdir())
        again += build(source, folder / "from-sdist", timestamp, "-t", "wheel")
        for file in again:
            if file.read_bytes() != (out / file.name).read_bytes():
                raise ValueError(
                    f"{file.parent.name}/{file.name}: not the same bytes as {out / file.name}"
                )
    return sdist, wheel


def list_source_files() -> set[str]:
    """Return the files of the package that git tracks; all files, if this is no checkout."""
    command = ["git", "ls-files", "-z", "qkv"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not result.returncode and result.stdout:
        return {name for name in result.stdout.split("\0") if name}
    files = (ROOT / "qkv").rglob("*")
    return {file.relative_to(ROOT).as_posix() for file in files if file.suffix in SUFFIXES}


def check_contents(sdist: Path, wheel: Path) -> None:
    """Raise ValueError unless the wheel has the files of the package and its licenses only."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    with tarfile.open(sdist) as tar:
        members = {name.partition("/")[2] for name in tar.getnames()}
    info = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    sources = list_source_files()
    problems = [f"{name} is not tracked" for name in sorted(names - info - sources)]
    problems += [f"{name} is missing" for name in sorted(sources - names)]
    problems += [f"{name} is missing" for name in REQUIRED if name not in names]
    problems += [
        f"{name} is unexpected"
        for name in sorted(names - info)
        if Path(name).suffix not in SUFFIXES
    ]
    licenses = {name.rpartition("/licenses/")[2] for name in info if "/licenses/" in name}
    if licenses != {"LICENSE", "LICENSES.md"}:
        problems.append(f"its licenses are {sorted(licenses)}, expected LICENSE and LICENSES.md")
    problems += [f"{name} is missing in the sdist" for name in SDIST_ONLY if name not in members]
    if problems:
        raise ValueError(f"{wheel.name}: {'; '.join(problems)}")


def write_checksums(out: Path) -> None:
    """Write SHA256SUMS, in the format of sha256sum."""
    files = sorted(file for file in out.iterdir() if file.name != "SHA256SUMS")
    rows = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(rows), encoding="utf-8")


def test_wheel(wheel: Path, version: str) -> None:
    """Install the wheel with its locked dependencies into a new environment, and use it there."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        python = folder / "venv" / "bin" / "python"
        install_locked(python, folder / "torch")
        run([python, "-m", "pip", "install", "-qq", "--no-deps", wheel], folder)
        run([python, "-m", "pip", "-q", "check"], folder)
        work = folder / "work"
        work.mkdir()
        (work / "train.tsv").write_text(TRAINING_DATA, encoding="utf-8")
        location = run([python, "-c", "import qkv; print(qkv.__file__)"], work)
        if not Path(location.strip()).is_relative_to(folder / "venv"):
            raise ValueError(f"qkv was imported from {location}, expected the new environment")
        for arguments, text in COMMANDS.items():
            output = run([folder / "venv" / "bin" / "qkv", *arguments], work)
            if text.format(version=version) not in output:
                raise ValueError(f"qkv {' '.join(arguments)}: expected {text!r} in {output!r}")
            print(f"qkv {' '.join(arguments)}", flush=True)


def install_locked(python: Path, torch_folder: Path) -> None:
    """Install torch and the dependencies of the library, as the Makefile does."""
    pip: list[str | Path] = [python, "-m", "pip"]
    locked: list[str | Path] = [*pip, "install", "-qq", "--no-deps", "--require-hashes"]
    requirements = ROOT / "requirements"
    pin = next(row for row in (requirements / "torch.txt").read_text().split() if "torch==" in row)
    run([*pip, "download", "-qq", "--no-deps", "--dest", torch_folder, pin], ROOT)
    run(
        [*locked, "--no-index", "--find-links", torch_folder, "-r", requirements / "torch.txt"],
        ROOT,
    )
    shutil.rmtree(torch_folder)
    if "nvidia" in run([*pip, "show", "torch"], ROOT):
        run([*locked, "-r", requirements / "cuda.txt"], ROOT)
    run([*locked, "-r", requirements / "library.txt"], ROOT)


def run(command: list[str | Path], folder: Path) -> str:
    """Run a command without the checkout on its path; return its output."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    words = [str(word) for word in command]
    result = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise ValueError(
            f"{' '.join(words)}: exit code {result.returncode}\n{result.stdout}{result.stderr}"
        )
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="output folder; emptied first"
    )
    parser.add_argument(
        "--no-install", action="store_true", help="do not install and test the wheel"
    )
    options = parser.parse_args()
    out = options.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    try:
        if LICENSES.read_text("utf-8") != format_page():
            raise ValueError("LICENSES.md is outdated: run python -m tools.release.licenses")
        timestamp = get_timestamp()
        sdist, wheel = build_twice(out, timestamp)
        check_contents(sdist, wheel)
        write_sbom(wheel, timestamp)
        write_checksums(out)
        print((out / "SHA256SUMS").read_text("utf-8"), end="", flush=True)
        if not options.no_install:
            test_wheel(wheel, wheel.name.split("-")[1])
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"dist: {error}")


if __name__ == "__main__":
    main()
