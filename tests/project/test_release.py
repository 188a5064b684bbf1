"""What is released: locked requirements, licenses, and the files of the sdist and the wheel."""

import json
import re
import shutil
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tools.release import dist, licenses, lock, sbom

TIMESTAMP = 1_700_000_000
FILES = ("torch", "cuda", "library", "build", "dev", "docs")


def is_locked_environment() -> bool:
    """Return whether the dependencies of the library and the build have the locked versions."""
    try:
        pins = licenses.read_pins("torch", "library", "build")
        return all(version(name).partition("+")[0] == pin for name, pin in pins.items())
    except PackageNotFoundError:
        return False


needs_locked_environment = pytest.mark.skipif(
    not is_locked_environment(), reason="the environment is not the one of make .venv"
)


def test_requirements_have_versions_and_hashes() -> None:
    assert {file.stem for file in (ROOT / "requirements").iterdir()} == {*FILES}
    names: list[str] = []
    for name in FILES:
        text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
        rows = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines()
        for row in rows:
            assert re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", row), row
        names += [canonicalize_name(row.partition("==")[0]) for row in rows]
    assert len(names) == len({*names}), "a package is in two files"


def test_requirements_satisfy_pyproject() -> None:
    pins = {canonicalize_name(name): pin for name, pin in licenses.read_pins(*FILES).items()}
    for rows in lock.read_roots().values():
        for requirement in rows:
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier


def test_files_of_a_lock() -> None:
    def package(name: str, *requirements: str) -> lock.Package:
        return lock.Package(name, "1", tuple(map(Requirement, requirements)))

    rows = [
        package("torch", "sympy", 'nvidia-x; python_version > "3"', 'none; python_version < "3"'),
        package("nvidia-x", "sympy", "driver"), package("driver"), package("sympy"), package("tests"),
        package("library", "tests[more]; extra == 'test'", "sympy"), package("tool", "tests[more]"),
    ]  # fmt: skip
    packages = {row.name: row for row in rows}
    roots = {
        "torch": [Requirement("torch")], "library": [Requirement("library")], "build": [],
        "dev": [Requirement("tool"), Requirement("library")], "docs": [Requirement("tests")],
    }  # fmt: skip
    assert lock.assign_files(packages, roots) == {
        "torch": ["torch"], "library": ["library", "sympy"], "cuda": ["driver", "nvidia-x"], "build": [],
        "dev": ["tests", "tool"], "docs": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_supported"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp311-cp311-macosx_11_0_arm64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_1_x86_64.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl", False),
        ("a-1.tar.gz", False),
    ],
)
def test_wheels_of_a_lock(name: str, is_supported: bool) -> None:
    assert lock.is_supported(name) == is_supported


@needs_locked_environment
def test_licenses_are_current() -> None:
    assert licenses.FILE.read_text("utf-8") == licenses.format_page()


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    files = dist.build(ROOT, tmp_path_factory.mktemp("release") / "dist", TIMESTAMP)
    wheel, source = sorted(files, key=lambda file: file.suffix != ".whl")
    return source, wheel


@needs_locked_environment
def test_wheel_and_bill_of_materials(release: tuple[Path, Path]) -> None:
    """The wheel has the files of the package; the bill lists all of them and the dependencies."""
    source, wheel = release
    dist.check_contents(source, wheel)
    bill = json.loads(sbom.write_sbom(wheel, TIMESTAMP).read_text("utf-8"))
    assert bill == sbom.build_sbom(wheel, TIMESTAMP)
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    components = {row["bom-ref"]: row for row in bill["components"]}
    assert len(components) == len(bill["components"])
    with zipfile.ZipFile(wheel) as archive:
        assert {f"file:{name}" for name in archive.namelist()} <= components.keys()
    model = components["model:translate"]
    weights = components["file:qkv/builtin/translate/model.safetensors"]
    assert model["hashes"] == weights["hashes"]
    assert "CC BY 2.0 FR" in model["properties"][0]["value"]
    pins = licenses.read_pins("torch", "library")
    for name, pin in pins.items():
        row = components[f"pkg:pypi/{canonicalize_name(name)}@{pin}"]
        assert row["licenses"]
        assert row["externalReferences"][0]["hashes"]
    direct = bill["dependencies"][0]["dependsOn"]
    assert f"pkg:pypi/torch@{pins['torch']}" in direct
    references = {*components, bill["metadata"]["component"]["bom-ref"]}
    assert {row["ref"] for row in bill["dependencies"]} <= references


@needs_locked_environment
def test_contents_that_are_refused(release: tuple[Path, Path], tmp_path: Path) -> None:
    source, wheel = release[0], tmp_path / release[1].name
    shutil.copyfile(release[1], wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("qkv/data.csv", "1")
    with pytest.raises(
        ValueError, match=r"qkv/data.csv is not tracked; qkv/data.csv is unexpected"
    ):
        dist.check_contents(source, wheel)
