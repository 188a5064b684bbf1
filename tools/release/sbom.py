"""The software bill of materials of a wheel, as CycloneDX JSON: what it contains and what it needs."""

from __future__ import annotations

import hashlib
import json
import uuid
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tools.release.licenses import (
    ROOT,
    find_license,
    list_models,
    read_card_license,
    read_pins,
)
from tools.release.lock import read_hashes

SPEC_VERSION = "1.6"
LICENSE = "Apache-2.0"


def build_sbom(wheel: Path, timestamp: int) -> dict[str, Any]:
    """Return the bill of materials of a wheel: its files, its models and its dependencies.

    The dependencies are those of requirements/torch.txt and library.txt, which must be installed."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    reference = f"pkg:pypi/{name}@{version}"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pins = read_pins("torch", "library")
    references: dict[str, str] = {
        canonicalize_name(pin): get_reference(pin, pins[pin]) for pin in pins
    }
    root = {
        "type": "library", "bom-ref": reference, "name": name, "version": str(version), "purl": reference,
        "licenses": [{"expression": LICENSE}], "hashes": format_hashes([digest]),
    }  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        files = [describe_file(archive, entry) for entry in sorted(archive.namelist())]
        models = [describe_model(archive, folder) for folder in list_models()]
    dependencies = [describe_dependency(pin, pins[pin]) for pin in sorted(pins, key=str.lower)]
    edges = {reference: find_references(metadata_requirements("qkv"), references)}
    for pin in sorted(pins, key=str.lower):
        edges[references[canonicalize_name(pin)]] = find_references(
            metadata_requirements(pin), references
        )
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{reference}#{digest}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": root,
        },
        "components": [*models, *files, *dependencies],
        "dependencies": [{"ref": ref, "dependsOn": targets} for ref, targets in edges.items()],
    }


def get_reference(name: str, version: str) -> str:
    """Return the package URL of a version."""
    return f"pkg:pypi/{canonicalize_name(name)}@{version}"


def format_hashes(digests: Iterable[str]) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest} for digest in digests]


def describe_file(archive: zipfile.ZipFile, entry: str) -> dict[str, Any]:
    """Return the component of a file of the wheel."""
    digest = hashlib.sha256(archive.read(entry)).hexdigest()
    return {
        "type": "file",
        "bom-ref": f"file:{entry}",
        "name": entry,
        "hashes": format_hashes([digest]),
    }


def describe_model(archive: zipfile.ZipFile, folder: Path) -> dict[str, Any]:
    """Return the component of a built-in model: its weights and the license of its data."""
    path = folder.relative_to(ROOT).as_posix()
    digest = hashlib.sha256(archive.read(f"{path}/model.safetensors")).hexdigest()
    license_, sources = read_card_license(folder)
    return {
        "type": "machine-learning-model", "bom-ref": f"model:{folder.name}", "name": f"builtin:{folder.name}",
        "description": f"{path}/model.safetensors", "hashes": format_hashes([digest]),
        "licenses": [{"expression": LICENSE}],
        "properties": [
            {"name": "qkv:data:license", "value": license_},
            {"name": "qkv:data:sources", "value": sources},
        ],
    }  # fmt: skip


def describe_dependency(name: str, version: str) -> dict[str, Any]:
    """Return the component of a package, with the hashes of the files that the lock allows."""
    package = metadata(name)
    if package["Version"].partition("+")[0] != version:
        raise ValueError(
            f"{name} {package['Version']} is installed, expected {version} of requirements/: run make .venv"
        )
    license_, is_expression = find_license(package), "License-Expression" in package
    digests = read_hashes("torch.txt", f"{name}=={version}") | read_hashes(
        "library.txt", f"{name}=={version}"
    )
    return {
        "type": "library", "bom-ref": get_reference(name, version), "name": name, "version": version,
        "purl": get_reference(name, version), "scope": "required",
        "licenses": [{"expression": license_} if is_expression else {"license": {"name": license_}}],
        "externalReferences": [
            {"type": "distribution", "url": f"https://pypi.org/project/{canonicalize_name(name)}/{version}/",
             "hashes": format_hashes(sorted(digests))},
        ],
    }  # fmt: skip


def metadata_requirements(name: str) -> list[str]:
    """Return the names of the packages that a package requires in this environment."""
    rows = [Requirement(text) for text in requires(name) or ()]
    return [row.name for row in rows if row.marker is None or row.marker.evaluate({"extra": ""})]


def find_references(names: Iterable[str], references: dict[str, str]) -> list[str]:
    """Return the references of packages, sorted."""
    return sorted(
        {
            references[canonicalize_name(name)]
            for name in names
            if canonicalize_name(name) in references
        }
    )


def write_sbom(wheel: Path, timestamp: int) -> Path:
    """Write the bill of materials next to the wheel, and return its path."""
    name, version, *_ = parse_wheel_filename(wheel.name)
    path = wheel.parent / f"{name}-{version}.cdx.json"
    path.write_text(json.dumps(build_sbom(wheel, timestamp), indent=2) + "\n", encoding="utf-8")
    return path
