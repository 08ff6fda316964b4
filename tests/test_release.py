"""What a release holds: sdist and wheel from a clean copy of the tree, checked, installed and used."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from ringfeed.tools.environment.horovod_recipe import SYSTEM_PACKAGES
from tests.test_packaging import LAYERS, ROOT, configured

URL = configured()["metadata"]["url"]
VERSION = configured()["metadata"]["version"]


def tracked_files() -> list[str]:
    """The files of the repository, also those not yet committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git repository")
    return sorted(name for name in set(listed.stdout.splitlines()) if (ROOT / name).exists())


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The two files of a release, and what it was made of."""

    files: list[str]
    sdist: Path
    wheel: Path

    def wheel_names(self) -> set[str]:
        return set(zipfile.ZipFile(self.wheel).namelist())

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            return email.message_from_bytes(archive.read(f"ringfeed-{VERSION}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Built as .github/workflows/release.yml does: the wheel from what the sdist holds."""
    root = tmp_path_factory.mktemp("release")
    files = tracked_files()
    for name in files:
        (root / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / "tree" / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(root), str(root / "tree")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (sdist,), (wheel,) = root.glob("*.tar.gz"), root.glob("*.whl")
    return Release(files=files, sdist=sdist, wheel=wheel)


@pytest.fixture(scope="module")
def bin_folder(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a new environment with the wheel; what it depends on comes from this one."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=100)
    python = place / "bin/python"
    (site,) = place.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(str(Path(pytest.__file__).parents[1]))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--ignore-installed", str(release.wheel)], check=True, timeout=200)
    return place / "bin"


def run(folder: Path, program: str, *args: str, at: Path) -> str:
    """The standard output of a command of the new environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(folder / program), *args]
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sdist_holds_every_file_of_the_repository(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert set(release.files) - held == set()
    assert not [name for name in held if name.endswith((".so", ".pyc"))]


def test_the_wheel_holds_the_package_and_its_examples(release: Release) -> None:
    names = release.wheel_names()
    kinds = (".py", ".pyi", ".html", "py.typed")
    of_layers = {f for f in release.files if f.partition("/")[0] in LAYERS and f.endswith(kinds)}
    assert {f"ringfeed/{name}" for name in of_layers} - names == set()
    shared = {f for f in release.files if f.startswith(("examples/", "notebooks/"))}
    assert {f"ringfeed-{VERSION}.data/data/share/ringfeed/{name}" for name in shared} - names == set()
    assert f"ringfeed-{VERSION}.dist-info/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {
        "ringfeed", f"ringfeed-{VERSION}.dist-info", f"ringfeed-{VERSION}.data",
    }  # fmt: skip


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_the_wheel_holds_the_compiled_kernels(release: Release) -> None:
    compiled = {name.split(".")[0] for name in release.wheel_names() if name.endswith(".so")}
    assert compiled == {
        "ringfeed/sharding/compute/_kernels",
        "ringfeed/pipeline/deliver/_operations",
        "ringfeed/pipeline/transforms/_images",
        "ringfeed/training/records/_clock",
    }


def test_an_index_would_take_both_files(release: Release) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(release.sdist), str(release.wheel)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


def test_links_and_pictures_of_the_index_page_lead_to_files_of_this_release(release: Release) -> None:
    render = import_module("readme_renderer.markdown").render
    page = render(str(release.metadata().get_payload(decode=False)))
    links = set(re.findall(r'(?:src|srcset|href)="([^"]+)"', page))
    ours = {link for link in links if link.startswith(URL)}
    assert {link for link in links - ours if not link.startswith(("https://", "#"))} == set()
    assert f"{URL}/raw/v{VERSION}/docs/overview.svg" in ours
    for link in ours:
        kind, tag, name = link.removeprefix(f"{URL}/").partition("#")[0].split("/", 2)
        assert (kind, tag) == ("raw" if name.endswith((".svg", ".png")) else "blob", f"v{VERSION}")
        assert (ROOT / name).exists(), link


def test_the_metadata_name_the_project(release: Release) -> None:
    metadata = release.metadata()
    assert (metadata["Name"], metadata["Version"]) == ("ringfeed", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    addresses = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
    assert {"Documentation", "Changelog", "Issues", "Source"} <= addresses.keys()
    assert all(address.startswith(f"{URL}/") for address in addresses.values())


def test_a_new_environment_runs_the_wheel(bin_folder: Path, tmp_path: Path) -> None:
    shared = bin_folder.parent / "share/ringfeed/examples"
    code = "import ringfeed.tools, ringfeed.training, ringfeed.pipeline, ringfeed.sharding as s; print(s.__file__)"
    assert Path(run(bin_folder, "python", "-c", code, at=tmp_path).strip()).is_relative_to(bin_folder.parent)
    assert run(bin_folder, "ringfeed", "--version", at=tmp_path) == f"ringfeed {VERSION}\n"
    assert "install-horovod" in run(bin_folder, "ringfeed", "--help", at=tmp_path)
    said = run(bin_folder, "python", str(shared / "first_shards.py"), "first", at=tmp_path)
    assert "{'failing': 128, 'sound': 128}" in said
    run(bin_folder, "shard-dataset", "build", "first/readings.csv", "again", "--label", "state", at=tmp_path)
    assert "as they were written" in run(bin_folder, "shard-dataset", "verify", "again", at=tmp_path)


def test_all_that_name_the_project_or_its_version_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["repository-code"]) == (VERSION, URL)
    assert f"<{URL}/security/advisories/new>" in (ROOT / "SECURITY.md").read_text()


def dockerfile_stages() -> dict[str, str]:
    """The stages of the Dockerfile by name, their lines joined, without comments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    stages = re.findall(r"^FROM \S+ AS ([\w-]+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    return dict(stages)


def test_the_dockerfile_copies_what_is_there_and_installs_extras_that_exist() -> None:
    stages = dockerfile_stages()
    assert list(stages) == ["build-cpu", "build-gpu", "gpu", "cpu"]
    for name, text in stages.items():
        copies = re.findall(r"^COPY (?:--from=(\S+) )?(\S+) \S+$", text, re.MULTILINE)
        assert len(copies) == text.count("COPY")
        for stage, source in copies:
            earlier = list(stages)[: list(stages).index(name)]
            assert stage in earlier if stage else (ROOT / source).exists(), source
        for extras in re.findall(r"\.\[([\w,]+)\]", text):
            assert set(extras.split(",")) <= set(configured()["options.extras_require"])
        if name.startswith("build-"):
            assert set(SYSTEM_PACKAGES) <= set(text.split()), "what install-horovod would miss"
        else:
            assert "\nUSER ringfeed\n" in text
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {"README.md", "LICENSE", "setup.py", "*.md", "examples", "notebooks", *LAYERS} & set(ignored)


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_a_workflow_runs_what_is_there(name: str) -> None:
    text = (ROOT / ".github/workflows" / name).read_text()
    jobs = yaml.safe_load(text)["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert all(needed in jobs for job in jobs.values() for needed in job.get("needs", []))
    named = re.findall(r"(?:(?<=\s)|(?<=/)|(?<='))((?:\.ci|examples|tests|tools)/[\w./*-]+)", text)
    assert all(list(ROOT.glob(path)) for path in named), named
    if name == "ci.yml":
        assert ".ci/run" in [step.get("run") for step in steps]


def test_actions_are_pinned_by_commit() -> None:
    """All but the publisher, whose commit could not be looked up: nothing else runs what a moved tag names."""
    used = [line for path in (ROOT / ".github/workflows").glob("*.yml") for line in path.read_text().splitlines()]
    actions = [line.split("uses: ", 1)[1] for line in used if "uses: " in line]
    moving = [action for action in actions if not re.match(r"[\w./-]+@[0-9a-f]{40} # v\d", action)]
    assert moving == ["pypa/gh-action-pypi-publish@release/v1"]


@pytest.mark.campaign
def test_an_empty_environment_gets_all_it_needs_from_the_index(release: Release, tmp_path: Path) -> None:
    """A minute: pip downloads what ringfeed depends on, and nothing else is there."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "new")], check=True, timeout=100)
    bin_folder = tmp_path / "new/bin"
    run(bin_folder, "python", "-m", "pip", "install", "--quiet", str(release.wheel), at=tmp_path)
    example = bin_folder.parent / "share/ringfeed/examples/first_shards.py"
    assert "128" in run(bin_folder, "python", str(example), "first", at=tmp_path)
    run(bin_folder, "ringfeed", "doctor", "--json", at=tmp_path)
