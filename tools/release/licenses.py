"""Write LICENSES.md: the licenses of what is in the package, and of what it needs.

    python -m tools.release.licenses

The data of the built-in models are described by their model cards, the dependencies by their metadata in
this environment."""

from __future__ import annotations

import re
from importlib.metadata import PackageMetadata, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "LICENSES.md"
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
}
LANGUAGE_DETECTOR = """\
### qkv/builtin/german_english.json

Weights of words and letters of German and English, counted in the training data of `builtin:translate`
(`tools/language_detector.py`); the licenses of its data are the same.
"""
PAGE = """\
# Licenses

Written by `python -m tools.release.licenses`.

## qkv

The source code, the recipes, the documentation and the weights of the built-in models are under the
Apache License 2.0 ([LICENSE](LICENSE)).

## Data of the built-in models

The package contains weights and vocabularies that were trained on these data; it does not contain the data.

{models}
{language_detector}
## Dependencies

These packages are not part of qkv; pip installs them. The versions are those of `requirements/`, the
licenses are those that the packages state.

| package | version | license |
|---|---|---|
{packages}
"""


def read_pins(*files: str) -> dict[str, str]:
    """Return the versions of requirements files by name."""
    texts = [(ROOT / "requirements" / f"{file}.txt").read_text("utf-8") for file in files]
    return dict(re.findall(r"^(\S+)==(\S+)", "\n".join(texts), flags=re.MULTILINE))


def read_card_license(folder: Path) -> tuple[str, str]:
    """Return the license of the data of a built-in model, and the sources, by its model card."""
    card = (folder / "README.md").read_text("utf-8")
    match = re.search(r"^License of the data: (.+)\n\n(.+)$", card, flags=re.MULTILINE)
    if match is None:
        raise ValueError(f"{folder}/README.md: expected the license of the data and the sources")
    return match[1], match[2]


def find_license(package: PackageMetadata) -> str:
    """Return the license that a package states: an SPDX expression, or a name."""
    if "License-Expression" in package:
        return str(package["License-Expression"])
    classifiers = [row.rsplit(" :: ", 1)[1] for row in package.get_all("Classifier") or ()
                   if row.startswith("License :: ")]  # fmt: skip
    names = [CLASSIFIERS.get(name, name) for name in classifiers]
    text = str(package["License"]).strip() if "License" in package else ""
    if names and (not text or "\n" in text):
        return " AND ".join(names)
    return text or "not stated"


def list_models() -> list[Path]:
    """Return the folders of the built-in models."""
    return sorted(file.parent for file in (ROOT / "qkv" / "builtin").glob("*/README.md"))


def format_page() -> str:
    """Return the text of LICENSES.md."""
    models = []
    for folder in list_models():
        license_, sources = read_card_license(folder)
        models.append(
            f"### builtin:{folder.name}\n\n{license_[0].upper()}{license_[1:]}.\n\n{sources}\n"
        )
    pins = sorted(read_pins("torch", "library").items(), key=lambda row: row[0].lower())
    rows = [f"| {name} | {version} | {find_license(metadata(name))} |" for name, version in pins]
    return PAGE.format(
        models="\n".join(models), language_detector=LANGUAGE_DETECTOR, packages="\n".join(rows)
    )


if __name__ == "__main__":
    FILE.write_text(format_page(), encoding="utf-8")
