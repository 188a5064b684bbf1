"""Write requirements/*.txt: the versions that make installs, with the hashes of their files.

    python -m tools.release.lock [--upgrade]

pip selects the versions on this platform, with those of the present files unless `--upgrade` is given. The
files list the hashes of all wheels of a version that fit a platform and a Python for which torch has a
wheel; pip refuses any other file. Needs the network, and an environment with `packaging`."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
import tomllib
import urllib.request
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "requirements"
INDEX = "https://pypi.org/simple"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # builds without CUDA have hashes of their own
PLATFORMS = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx_.*_(arm64|universal2)|win_amd64")
TITLES = {
    "torch": "PyTorch: the builds of PyPI and those without CUDA",
    "cuda": "What PyPI's build of PyTorch for Linux needs besides: libraries of NVIDIA, Triton",
    "library": "What qkv needs besides PyTorch",
    "build": "What builds qkv",
    "dev": "What checks and tests need",
    "docs": "What builds the documentation site",
}


@dataclass(frozen=True)
class Package:
    """A version that pip selected, and what it requires."""

    name: str
    version: str
    requirements: tuple[Requirement, ...]


def read_roots() -> dict[str, list[Requirement]]:
    """Return the requirements of each file by pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        config = tomllib.load(file)
    project, extras = config["project"], config["project"]["optional-dependencies"]
    texts = {
        "torch": [text for text in project["dependencies"] if Requirement(text).name == "torch"],
        "library": [text for text in project["dependencies"] if Requirement(text).name != "torch"],
        "build": [*config["build-system"]["requires"], "editables"],
        "dev": [*extras["dev"], *extras["eval"]],
        "docs": extras["docs"],
    }
    return {name: [Requirement(text) for text in rows] for name, rows in texts.items()}


def read_pins() -> list[str]:
    """Return the versions of the present files: "numpy==2.4.6", ..."""
    texts = [file.read_text("utf-8") for file in sorted(FOLDER.glob("*.txt"))]
    return re.findall(r"^(\S+==[^\s;]+)", "\n".join(texts), flags=re.MULTILINE)


def read_hashes(file_name: str, pin: str) -> set[str]:
    """Return the hashes that a present file has of a version."""
    file = FOLDER / file_name
    text = file.read_text("utf-8") if file.exists() else ""
    rows = re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)
    return {
        digest
        for row in rows
        if row.split(maxsplit=1)[0] == pin
        for digest in re.findall(r"sha256:([0-9a-f]{64})", row)
    }


def resolve(requirements: Iterable[str], pins: list[str]) -> dict[str, Package]:
    """Return the packages that pip would install into an empty environment, by canonical name.

    Only metadata are downloaded. The index is PyPI alone, whose torch for Linux has CUDA."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "venv", with_pip=True)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "--isolated", "-q"]
        subprocess.run([*pip, "install", "--index-url", INDEX, "--upgrade", "pip"], check=True)
        (folder / "pins.txt").write_text("\n".join(pins), encoding="utf-8")
        (folder / "roots.txt").write_text("\n".join(requirements), encoding="utf-8")
        report = folder / "report.json"
        command = ["install", "--index-url", INDEX, "--dry-run", "--ignore-installed"]
        command += ["--use-feature", "fast-deps", "--only-binary", ":all:"]
        command += ["--report", str(report), "-r", str(folder / "roots.txt")]
        subprocess.run([*pip, *command, "-c", str(folder / "pins.txt")], check=True)
        rows = json.loads(report.read_text("utf-8"))["install"]
    packages = (read_package(row["metadata"]) for row in rows)
    return {canonicalize_name(package.name): package for package in packages}


def read_package(metadata: dict[str, Any]) -> Package:
    requirements = tuple(Requirement(text) for text in metadata.get("requires_dist", ()))
    return Package(metadata["name"], metadata["version"], requirements)


def iterate_closure(packages: dict[str, Package], roots: Iterable[Requirement]) -> Iterator[str]:
    """Yield the canonical names of all packages that the requirements lead to on this platform."""
    visited: set[tuple[str, str]] = set()
    queue = list(roots)
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            yield name
            environment = {"extra": extra}
            queue += [
                row
                for row in packages[name].requirements
                if row.marker is None or row.marker.evaluate(environment)
            ]


def assign_files(
    packages: dict[str, Package], roots: dict[str, list[Requirement]]
) -> dict[str, list[str]]:
    """Return the sorted packages of each file; a package is in one file only.

    The requirements of torch that hold on every platform are those of all of its builds."""
    common = [row for row in packages["torch"].requirements if row.marker is None]
    closures = {
        "torch": {"torch"},
        "library": {*iterate_closure(packages, [*roots["library"], *common])},
        "cuda": {*iterate_closure(packages, roots["torch"])},
        **{name: {*iterate_closure(packages, roots[name])} for name in ("build", "dev", "docs")},
    }
    files: dict[str, list[str]] = {}
    assigned: set[str] = set()
    for name, members in closures.items():
        files[name] = sorted(members - assigned)
        assigned |= members
    return files


def is_supported(file_name: str) -> bool:
    """Return whether a file is a wheel for a platform and a Python that qkv supports."""
    try:
        tags = parse_wheel_filename(file_name)[3]
    except InvalidWheelFilename:
        return False
    for tag in tags:
        match = re.fullmatch(r"(?:py|cp)3(\d*)", tag.interpreter)
        if not match or not PLATFORMS.fullmatch(tag.platform):
            continue
        if not match[1] or int(match[1]) >= 11 or tag.abi in ("abi3", "none"):
            return True
    return False


def read_index(url: str) -> list[tuple[str, str]]:
    """Return the file names of a page of an index, with their SHA-256."""
    with urllib.request.urlopen(url, timeout=60) as response:
        page = response.read().decode("utf-8")
    links = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page)
    return [(unquote(link).rsplit("/", 1)[1], digest) for link, digest in links]


def read_local_files(find_links: list[Path], pattern: str) -> list[tuple[str, str]]:
    """Return the names of files in folders, with their SHA-256."""
    files = [file for folder in find_links for file in sorted(folder.glob(pattern))]
    return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


def find_hashes(package: Package, find_links: list[Path]) -> list[str]:
    """Return the hashes of the wheels of a package; of torch, those of all builds."""
    name = canonicalize_name(package.name)
    files = read_index(f"{INDEX}/{name}/")
    if name == "torch":
        files += read_local_files(find_links, f"torch-{package.version}+cpu-*.whl")
        try:
            files += read_index(f"{TORCH_INDEX}/torch/")
        except URLError as error:
            print(f"{TORCH_INDEX}: {error.reason}; the lock has the builds it had before")
    hashes = {
        digest
        for file_name, digest in files
        if is_supported(file_name) and parse_wheel_filename(file_name)[1].public == package.version
    }
    if name == "torch":
        hashes |= read_hashes("torch.txt", f"{package.name}=={package.version}")
    if not hashes:
        raise ValueError(f"{package.name} {package.version}: no wheel that fits; expected one")
    return sorted(hashes)


def format_lock(title: str, file_name: str, rows: dict[str, list[str]]) -> str:
    """Return a requirements file: versions, each with its hashes."""
    lines = [
        f"# {title}. Written by `make lock`.",
        f"# pip install --require-hashes --no-deps -r requirements/{file_name}",
    ]
    for pin, hashes in rows.items():
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in hashes)]))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="select the newest versions")
    parser.add_argument(
        "--find-links", type=Path, action="append", default=[],
        help="folder with builds of torch that the lock allows too",
    )  # fmt: skip
    options = parser.parse_args()
    roots = read_roots()
    texts = [str(requirement) for rows in roots.values() for requirement in rows]
    packages = resolve(texts, [] if options.upgrade else read_pins())
    FOLDER.mkdir(exist_ok=True)
    for name, members in assign_files(packages, roots).items():
        rows = {
            f"{packages[member].name}=={packages[member].version}": find_hashes(
                packages[member], options.find_links
            )
            for member in members
        }
        text = format_lock(TITLES[name], f"{name}.txt", rows)
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"requirements/{name}.txt: {len(rows)} packages")


if __name__ == "__main__":
    main()
