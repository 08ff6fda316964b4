"""`ringfeed install-horovod`: build Horovod for the installed TensorFlow, cache the wheel, install it.

Horovod's last release is a source distribution that supports TensorFlow up to 2.15. With headers for what has moved
since, and a few environment variables, it builds unchanged against TensorFlow 2.21. `horovod_recipe` says how; this
module carries that out, and neither patches Horovod nor imports it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ringfeed.sharding.errors import RingfeedError
from ringfeed.tools.console import SafeConsole
from ringfeed.tools.probe import HorovodProbe, horovod_target, probe_runtime, tensorflow_distribution, version_of

from .horovod_recipe import (
    HOROVOD_SHA256,
    HOROVOD_VERSION,
    PYTHON_PACKAGES,
    BuildTarget,
    build_environment,
    cache_root,
    forwarding_headers,
    missing_system_packages,
)
from .nccl import NCCL_HINT, Nccl, find_nccl

_SHOWN_LINES = 20
_FAULT = re.compile(r": (fatal )?error: |CMake Error|undefined reference|command not found|No space left")
_PERCENT = re.compile(r"\[\s*(\d+)%\]")


def _has_on_this_machine(sign: str) -> bool:
    if not sign.endswith(".h"):
        return shutil.which(sign) is not None
    folders = [
        *os.environ.get("CPLUS_INCLUDE_PATH", "").split(os.pathsep),
        "/usr/include",
        "/usr/local/include",
    ]
    return any((Path(folder) / sign).exists() for folder in folders if folder)


def ensure_system_packages(say: Callable[[str], None]) -> None:
    """Install the system packages that the build needs, if root on Debian.

    Raises:
        RingfeedError: packages are missing and cannot be installed by this process; or apt-get fails.
    """
    missing = missing_system_packages(_has_on_this_machine)
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise RingfeedError(f"building Horovod needs {', '.join(missing)}; install them: sudo {shlex.join(command)}")
    say(f"installing {', '.join(missing)} with apt-get")
    quiet_apt = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update"], capture_output=True, env=quiet_apt, check=False)
    _run(command, quiet_apt)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command silently.

    Raises:
        RingfeedError: it fails; the message has the last line of its errors.
    """
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RingfeedError(f"`{shlex.join(command)}` failed: {last}")


def current_target(*, collectives: str) -> BuildTarget:
    """Return the target for the running Python and its TensorFlow.

    Raises:
        RingfeedError: TensorFlow is not installed.
    """
    tensorflow = tensorflow_distribution()
    if tensorflow is None:
        raise RingfeedError("Horovod needs TensorFlow, which is not installed: pip install 'ringfeed[cpu]'")
    return BuildTarget(
        tensorflow=tensorflow[1],
        python=sys.implementation.cache_tag,
        horovod=HOROVOD_VERSION,
        collectives=collectives,
        machine=f"{sys.platform}-{platform.machine()}",
    )


def choose_nccl(wanted: str) -> Nccl | None:
    """Return the NCCL to build with, or None; `auto` uses NCCL if all its parts are found.

    Raises:
        RingfeedError: `wanted` is ``yes``, and a part is missing.
    """
    nccl = find_nccl(os.environ, Path(sysconfig.get_path("purelib"))) if wanted != "no" else None
    cuda_tensorflow = (tensorflow_distribution() or ("", ""))[0] != "tensorflow-cpu"
    if wanted == "yes" and not (nccl and cuda_tensorflow):
        raise RingfeedError(f"--nccl yes needs {NCCL_HINT}")
    return nccl if cuda_tensorflow else None


@contextmanager
def _exclusive(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock, so that a second builder of one target waits for the wheel of the first."""
    own = (folder.parents[1], folder.parent, folder)  # the cache, its part for Horovod, and the target's
    try:
        folder.parents[2].mkdir(parents=True, exist_ok=True)
        for each in own:
            each.mkdir(mode=0o755, exist_ok=True)
            _check_owner(each)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise RingfeedError(f"cannot write to {folder} ({error.strerror}); choose another with --cache") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the same wheel")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_owner(path: Path) -> None:
    """Refuse a folder or wheel that another user, unless it is root, may have written: its code would run as this user.

    Raises:
        RingfeedError: it belongs to another user, or others may write to it.
    """
    status = path.lstat()
    if status.st_uid not in (os.getuid(), 0) or stat.S_ISLNK(status.st_mode):
        raise RingfeedError(f"{path} is a link, or belongs to another user; choose another folder with --cache")
    if status.st_mode & 0o022:
        raise RingfeedError(
            f"others may write to {path} (mode {stat.S_IMODE(status.st_mode):o}); if all in it is yours: "
            f"chmod -R go-w {shlex.quote(str(path))}; else choose another folder with --cache"
        )


def _checksum_file(wheel: Path) -> Path:
    return wheel.with_name(f"{wheel.name}.sha256")


def _cached_wheel(folder: Path) -> Path | None:
    """Return the wheel in a folder of this user, if it is as it was built.

    Raises:
        RingfeedError: another user may have written it.
    """
    wheel = next(folder.glob("horovod-*.whl"), None)
    if wheel is None:
        return None
    _check_owner(wheel)
    try:
        expected = _checksum_file(wheel).read_text()
    except OSError:
        return None
    return wheel if expected == hashlib.sha256(wheel.read_bytes()).hexdigest() else None


def _compile(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run the build with a progress bar fed by CMake's percentages; if it fails, show the errors in its log."""
    console, faults, tail = SafeConsole(stderr=True), list[str](), deque[str](maxlen=_SHOWN_LINES)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        log.open("w") as record,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("compiling Horovod", total=100)
        with subprocess.Popen(
            command, env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as build:  # fmt: skip
            for line in build.stdout or ():
                record.write(line)
                tail.append(line.rstrip())
                if _FAULT.search(line) and len(faults) < _SHOWN_LINES:
                    faults.append(line.rstrip())
                if percent := _PERCENT.search(line):
                    progress.update(task, completed=int(percent[1]))
    if build.returncode:
        console.print("\n".join(faults or tail), markup=False, highlight=False, soft_wrap=True)
        raise RingfeedError(f"building Horovod failed (status {build.returncode}); full log: {log}")


def build_wheel(target: BuildTarget, folder: Path, nccl: Nccl | None) -> Path:
    """Build in `folder/build`, then rename the wheel into `folder`; the caller holds the lock.

    Raises:
        RingfeedError: TensorFlow's files or a Python package are missing, or the build fails.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise RingfeedError(
            f"TensorFlow {target.tensorflow} is listed as installed and its files are not there: install it again"
        )
    absent = [name for module, name in PYTHON_PACKAGES.items() if importlib.util.find_spec(module) is None]
    if absent:
        raise RingfeedError(f"building Horovod needs {', '.join(absent)}: pip install {' '.join(absent)}")
    scratch = folder / "build"
    shutil.rmtree(scratch, ignore_errors=True)
    for path, text in forwarding_headers(Path(spec.origin).parent / "include").items():
        header = scratch / "include" / path
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
    if nccl:
        nccl.prepare(scratch / "nccl")
    environment = build_environment(os.environ, scratch=scratch, jobs=len(os.sched_getaffinity(0)), nccl=nccl)
    command = [
        sys.executable, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps",
        "--no-cache-dir", "--no-binary", "horovod", "--wheel-dir", str(scratch), "--require-hashes",
        "--requirement", str(scratch / "horovod.txt"),
    ]  # fmt: skip
    (scratch / "horovod.txt").write_text(f"horovod=={target.horovod} --hash=sha256:{HOROVOD_SHA256}\n")
    _compile(command, environment, folder / "build.log")
    (built,) = scratch.glob("horovod-*.whl")
    built.chmod(0o644)
    published = folder / built.name
    built.replace(published)
    shutil.rmtree(scratch, ignore_errors=True)
    return published


def _installed(target: BuildTarget) -> HorovodProbe | None:
    """Return the probe of the installed Horovod if it matches `target` and loads."""
    if version_of("horovod") != target.horovod or horovod_target() != target.tensorflow:
        return None
    probe = probe_runtime().horovod
    if probe is None or probe.error or ("nccl" in probe.collectives) != (target.collectives == "nccl"):
        return None
    return probe


def pip_install(wheel: Path) -> None:
    """Install the wheel alone into the running environment.

    Raises:
        RingfeedError: pip fails.
    """
    options = ["--quiet", "--no-deps", "--force-reinstall"]
    command = [sys.executable, "-m", "pip", "install", *options, str(wheel)]
    _run(command, os.environ)


def install(*, nccl: str, cache: Path, force: bool, say: Callable[[str], None]) -> HorovodProbe:
    """Make sure that a Horovod built for this environment is installed and loads; return its probe.

    Args:
        nccl: ``auto``, ``yes`` or ``no``: see `choose_nccl`.
        cache: folder of the wheels.
        force: whether to rebuild a wheel that is installed or cached.
        say: called with each line of progress.

    Raises:
        RingfeedError: Horovod cannot be built or installed, or does not load.
    """
    use_nccl = choose_nccl(nccl)
    target = current_target(collectives="nccl" if use_nccl else "cpu")
    if not force and (probe := _installed(target)):
        say("already installed")
        return probe
    folder = cache / "horovod" / target.key
    with _exclusive(folder, say):
        wheel = _cached_wheel(folder)
        if wheel is None or force:
            ensure_system_packages(say)
            what = f"Horovod {target.horovod} for TensorFlow {target.tensorflow} ({target.collectives})"
            say(f"building {what}; 2-4 minutes, log: {folder / 'build.log'}")
            started = time.monotonic()
            wheel = build_wheel(target, folder, use_nccl)
            _checksum_file(wheel).write_text(hashlib.sha256(wheel.read_bytes()).hexdigest())
            say(f"built in {time.monotonic() - started:.0f} s")
        else:
            say(f"using the cached {wheel}")
    pip_install(wheel)
    probe = probe_runtime().horovod
    if probe is None or probe.error:
        reason = probe.error if probe else "it is missing after the installation"
        raise RingfeedError(
            f"the installed Horovod does not load ({reason}); rebuild it: ringfeed install-horovod --force"
        )
    return probe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed install-horovod`."""
    parser.description = (
        f"Build Horovod {HOROVOD_VERSION} for the TensorFlow of the running Python (with Gloo, and NCCL if a CUDA "
        "toolkit and NCCL are found) and install it. The wheel is cached, so this takes minutes only once."
    )
    parser.epilog = (
        "examples:\n  ringfeed install-horovod\n  ringfeed install-horovod --nccl yes --cache /shared/cache\n"
    )
    parser.add_argument("--nccl", choices=("auto", "yes", "no"), default="auto", help="GPU collectives (default: auto)")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder of cached wheels (default: ~/.cache/ringfeed)"
    )
    parser.add_argument("--force", action="store_true", help="rebuild even if a wheel is cached or installed")


def run(args: argparse.Namespace) -> int:
    """Run `ringfeed install-horovod`."""
    console = SafeConsole(stderr=True)

    def say(text: str) -> None:
        console.print(f"horovod: {text}", markup=False, highlight=False, soft_wrap=True)

    cache = args.cache if args.cache is not None else cache_root(os.environ, Path.home())
    probe = install(nccl=args.nccl, cache=cache.absolute(), force=args.force, say=say)
    say(f"{HOROVOD_VERSION} loads, built with {', '.join(probe.collectives)}")
    return 0


if __name__ == "__main__":
    from ringfeed.tools.cli import main

    sys.exit(main(["install-horovod", *sys.argv[1:]]))
