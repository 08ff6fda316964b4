"""The Horovod installer: its recipe, its cache, and what a user sees when something is missing.

The build itself is real set-up (`make setup` runs it); here a stand-in for pip takes its place.
"""

import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest

from ringfeed.sharding.errors import RingfeedError
from ringfeed.tools.environment import horovod_build
from ringfeed.tools.environment.horovod_recipe import (
    HOROVOD_VERSION,
    MOVED_HEADERS,
    XLA_BUILDER,
    BuildTarget,
    build_environment,
    cache_root,
    forwarding_headers,
    missing_system_packages,
)
from ringfeed.tools.environment.nccl import Nccl, find_nccl
from ringfeed.tools.probe import HorovodProbe, Runtime

TARGET = {
    "tensorflow": "2.21.0",
    "python": "cpython-311",
    "horovod": HOROVOD_VERSION,
    "collectives": "cpu",
    "machine": "linux-x86_64",
}
OTHER = {
    "tensorflow": "2.21.1",
    "python": "cpython-312",
    "horovod": "0.29.0",
    "collectives": "nccl",
    "machine": "linux-aarch64",
}


@pytest.mark.parametrize("field", TARGET)
def test_the_cache_key_changes_with_every_part_of_the_target(field: str) -> None:
    changed = BuildTarget(**{**TARGET, field: OTHER[field]})
    assert changed.key != BuildTarget(**TARGET).key
    assert OTHER[field] in changed.key


def test_unknown_collectives_are_refused() -> None:
    with pytest.raises(ValueError, match="collectives must be 'cpu' or 'nccl', got 'mpi'"):
        BuildTarget(**{**TARGET, "collectives": "mpi"})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RINGFEED_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/ringfeed"),
        ({"RINGFEED_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/u/.cache/ringfeed"),
    ],
)
def test_the_cache_is_outside_the_tree(environment: dict[str, str], expected: str) -> None:
    assert cache_root(environment, Path("/home/u")) == Path(expected)


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_only_headers_that_moved_are_forwarded(tmp_path: Path) -> None:
    for new in MOVED_HEADERS.values():
        touch(tmp_path / new)
    touch(tmp_path / "tensorflow/compiler/xla/shape.h")
    headers = forwarding_headers(tmp_path)
    assert set(headers) == set(MOVED_HEADERS) - {"tensorflow/compiler/xla/shape.h"}
    assert headers["tensorflow/compiler/xla/xla_data.pb.h"] == '#include "xla/xla_data.pb.h"\n'
    assert headers[XLA_BUILDER].startswith('#include "xla/hlo/builder/xla_builder.h"\n')


def test_a_tensorflow_that_horovod_supports_needs_no_headers(tmp_path: Path) -> None:
    for old in MOVED_HEADERS:
        touch(tmp_path / old)
    assert forwarding_headers(tmp_path) == {}


def test_the_build_has_gloo_and_only_tensorflow_whatever_the_caller_has_set() -> None:
    base = {"PATH": "/bin", "HOME": "/root", "HOROVOD_WITH_MPI": "1", "CPLUS_INCLUDE_PATH": "/own"}
    built = build_environment(base, scratch=Path("/s"), jobs=3, nccl=None)
    assert {name: value for name, value in built.items() if name.startswith("HOROVOD_")} == {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
    }
    assert built["CPLUS_INCLUDE_PATH"] == "/s/include:/own"
    assert built["MAKEFLAGS"] == "-j3"
    assert built["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"
    assert built["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert built["HOME"] == "/root"


def test_nccl_is_found_in_a_pypi_package_and_linked_by_the_name_the_linker_wants(tmp_path: Path) -> None:
    cuda, site = tmp_path / "cuda", tmp_path / "site-packages"
    touch(cuda / "bin/nvcc")
    touch(cuda / "include/cuda_runtime.h")
    environment = {"CUDA_HOME": str(cuda), "PATH": ""}
    assert find_nccl(environment, site, system=tmp_path) is None

    header = touch(site / "nvidia/nccl/include/nccl.h")
    library = touch(site / "nvidia/nccl/lib/libnccl.so.2")
    found = find_nccl(environment, site, system=tmp_path)
    run_path = "$ORIGIN/../../nvidia/nccl/lib"
    assert found == Nccl(cuda_home=cuda, include=header.parent, library=library.resolve(), run_path=run_path)

    found.prepare(tmp_path / "link")
    assert (tmp_path / "link/libnccl.so").resolve() == library.resolve()
    built = build_environment({}, scratch=tmp_path, jobs=1, nccl=found)
    assert built["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert built["HOROVOD_NCCL_LIB"] == str(tmp_path / "nccl")
    assert built["LDFLAGS"] == f"-Wl,-rpath,{run_path}"


def test_nccl_without_a_cuda_toolkit_is_not_enough(tmp_path: Path) -> None:
    touch(tmp_path / "include/nccl.h")
    touch(tmp_path / "lib/libnccl.so.2")
    assert find_nccl({"PATH": ""}, tmp_path / "site-packages", system=tmp_path) is None


def test_every_missing_system_package_is_named() -> None:
    there = {"make", "g++", "farmhash.h"}
    assert missing_system_packages(there.__contains__) == ["cmake", "libhighwayhash-dev"]


def test_missing_system_packages_are_one_message_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_build, "_has_on_this_machine", lambda sign: sign != "cmake")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RingfeedError, match=r"sudo apt-get install -y --no-install-recommends cmake$") as caught:
        horovod_build.ensure_system_packages(print)
    assert "\n" not in str(caught.value)


class FakeMachine:
    """An environment with TensorFlow and no Horovod, where `build_wheel` takes no time and is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builds = 0
        self.probe: HorovodProbe | None = HorovodProbe(collectives=("gloo",))
        self.building = threading.Event()
        self.may_finish = threading.Event()
        self.may_finish.set()
        self.said: list[str] = []
        monkeypatch.setattr(horovod_build, "tensorflow_distribution", lambda: ("tensorflow-cpu", "2.21.0"))
        monkeypatch.setattr(horovod_build, "version_of", lambda name: None)
        monkeypatch.setattr(horovod_build, "ensure_system_packages", lambda say: None)
        monkeypatch.setattr(horovod_build, "build_wheel", self.build)
        monkeypatch.setattr(horovod_build, "pip_install", lambda wheel: self.said.append(f"pip {wheel.name}"))
        monkeypatch.setattr(horovod_build, "probe_runtime", lambda: Runtime(tensorflow=None, horovod=self.probe))

    def build(self, target: BuildTarget, folder: Path, nccl: Nccl | None) -> Path:
        self.builds += 1
        self.building.set()
        assert self.may_finish.wait(120)
        return touch(folder / f"horovod-{target.horovod}-none-any.whl")

    def install(self, cache: Path, *, nccl: str = "auto", force: bool = False) -> HorovodProbe:
        return horovod_build.install(nccl=nccl, cache=cache, force=force, say=self.said.append)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(monkeypatch)


def test_a_second_environment_uses_the_cached_wheel(machine: FakeMachine, tmp_path: Path) -> None:
    assert machine.install(tmp_path).collectives == ("gloo",)
    machine.install(tmp_path)
    assert machine.builds == 1
    assert any(line.startswith("using the cached") for line in machine.said)


def test_a_wheel_that_is_not_as_it_was_built_is_built_again(machine: FakeMachine, tmp_path: Path) -> None:
    machine.install(tmp_path)
    (wheel,) = tmp_path.rglob("*.whl")
    wheel.write_bytes(b"another")
    machine.install(tmp_path)
    wheel.with_name(f"{wheel.name}.sha256").unlink()
    machine.install(tmp_path)
    assert machine.builds == 3


@pytest.mark.parametrize("level", range(4))
def test_a_cache_that_others_may_write_to_is_refused(machine: FakeMachine, tmp_path: Path, level: int) -> None:
    cache = tmp_path / "cache"
    machine.install(cache)
    (wheel,) = cache.rglob("*.whl")
    place = (wheel, *wheel.parents)[level]
    for mode in (0o777, 0o775):
        place.chmod(mode)
        with pytest.raises(RingfeedError, match=rf"others may write to {place} \(mode {mode:o}\).*chmod -R go-w"):
            machine.install(cache)
    place.chmod(0o755)
    machine.install(cache)
    assert machine.builds == 1
    if os.geteuid() == 0:
        os.chown(place, 12345, 12345)
        with pytest.raises(RingfeedError, match="belongs to another user; choose another folder with --cache"):
            machine.install(cache)


def test_force_rebuilds(machine: FakeMachine, tmp_path: Path) -> None:
    machine.install(tmp_path)
    machine.install(tmp_path, force=True)
    assert machine.builds == 2


def test_of_two_concurrent_builders_one_waits_for_the_wheel_of_the_other(machine: FakeMachine, tmp_path: Path) -> None:
    machine.may_finish.clear()
    builders = [threading.Thread(target=machine.install, args=(tmp_path,)) for _ in range(2)]
    for builder in builders:
        builder.start()
    assert machine.building.wait(120)
    machine.may_finish.set()
    for builder in builders:
        builder.join(120)
    assert machine.builds == 1
    assert machine.said.count(f"pip horovod-{HOROVOD_VERSION}-none-any.whl") == 2


def test_a_wheel_that_does_not_load_is_an_error_that_says_what_to_do(machine: FakeMachine, tmp_path: Path) -> None:
    machine.probe = HorovodProbe(error="undefined symbol: x")
    with pytest.raises(RingfeedError, match=r"undefined symbol: x.*--force"):
        machine.install(tmp_path)


def test_a_cache_that_cannot_be_written_is_one_line(machine: FakeMachine, tmp_path: Path) -> None:
    touch(tmp_path / "file")
    with pytest.raises(RingfeedError, match=r"cannot write to .*file/horovod/.*--cache$"):
        machine.install(tmp_path / "file")


def test_nccl_is_refused_on_a_cpu_tensorflow_and_never_chosen_for_it(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl = Nccl(cuda_home=tmp_path, include=tmp_path, library=tmp_path, run_path="/lib")
    monkeypatch.setattr(horovod_build, "find_nccl", lambda environment, site_packages: nccl)
    with pytest.raises(RingfeedError, match="--nccl yes needs a CUDA build of TensorFlow"):
        machine.install(tmp_path, nccl="yes")
    assert horovod_build.choose_nccl("auto") is None
    monkeypatch.setattr(horovod_build, "tensorflow_distribution", lambda: ("tensorflow", "2.21.0"))
    assert horovod_build.choose_nccl("auto") == nccl
    assert horovod_build.choose_nccl("no") is None


def fake_pip(folder: Path, script: str) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_a_failed_build_leaves_no_wheel_and_shows_the_compilers_error_and_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = 'echo "[ 50%] Building"; echo "a.cc:1:2: error: no such type"; echo "pip is sorry"; exit 1'
    monkeypatch.setattr(sys, "executable", fake_pip(tmp_path, script))
    folder = tmp_path / "cache"
    folder.mkdir()
    with pytest.raises(RingfeedError, match=r"failed \(status 1\); full log: .*/cache/build.log"):
        horovod_build.build_wheel(BuildTarget(**TARGET), folder, None)
    shown = capfd.readouterr().err
    assert "a.cc:1:2: error: no such type" in shown
    assert "pip is sorry" not in shown
    assert "pip is sorry" in (folder / "build.log").read_text()
    assert not list(folder.glob("*.whl"))


def test_a_build_publishes_one_wheel_and_clears_its_scratch_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    touch(folder / "build/left-by-a-killed-build")
    script = f'echo "$CPLUS_INCLUDE_PATH"; echo "$@"; touch {folder}/build/horovod-0.28.1-cp311-cp311-linux_x86_64.whl'
    monkeypatch.setattr(sys, "executable", fake_pip(tmp_path, script))
    wheel = horovod_build.build_wheel(BuildTarget(**TARGET), folder, None)
    assert wheel == folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    assert sorted(path.name for path in folder.iterdir()) == ["build.log", wheel.name]
    assert re.search(r"--require-hashes --requirement \S+horovod.txt$", (folder / "build.log").read_text(), re.M)
    assert (folder / "build.log").read_text().startswith(f"{folder}/build/include")
