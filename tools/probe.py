"""Probes of the environment: installed versions, and whether TensorFlow and Horovod load.

Both are loaded in a subprocess only: a broken build can abort its process, and neither may slow the start of a command
that does not need it.
Tested in tests/tools/environment/test_doctor.py.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
_TIMEOUT_SECONDS = 120

# One line of JSON per fact, flushed: facts printed before an abort are kept. An error is a fact too.
_SCRIPT = """
import json, sys
def say(what, ask):
    try:
        value = ask()
    except BaseException as error:
        value = {"error": (str(error).strip().splitlines() or [type(error).__name__])[-1]}
    print(json.dumps({what: value}), flush=True)
    return "error" not in value
def tensorflow():
    import tensorflow as tf
    return {"version": tf.__version__, "gpus": [d.name for d in tf.config.list_physical_devices("GPU")]}
def horovod():
    import horovod.tensorflow as hvd
    asked = {"gloo": hvd.gloo_built, "nccl": hvd.nccl_built, "mpi": hvd.mpi_built}
    return {"collectives": {name: bool(built()) for name, built in asked.items()}}
say("tensorflow", tensorflow) and "horovod" in sys.argv and say("horovod", horovod)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowProbe:
    """TensorFlow in a fresh process: `error` is None if it loads; `gpus` are the devices that it can use."""

    gpus: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodProbe:
    """Horovod in a fresh process: `error` is None if it loads; `collectives` are those that it was built with."""

    collectives: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The probes of TensorFlow and Horovod; None for one that is not installed."""

    tensorflow: TensorflowProbe | None
    horovod: HorovodProbe | None


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None.

    >>> version_of("no-such-distribution-at-all") is None
    True
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def tensorflow_distribution() -> tuple[str, str] | None:
    """Return name and version of the distribution that provides `tensorflow`, or None."""
    for name in TENSORFLOW_DISTRIBUTIONS:
        if version := version_of(name):
            return name, version
    return None


def horovod_target() -> str | None:
    """Return the TensorFlow version that the installed Horovod was built for, from its `metadata.json`."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return None
    record = Path(spec.origin).with_name("metadata.json")
    try:
        built_for = json.loads(record.read_text()).get("tensorflow")
    except (OSError, ValueError, AttributeError):
        return None
    return built_for if isinstance(built_for, str) else None


def parse_probe(stdout: str, stderr: str, returncode: int, *, tensorflow: bool, horovod: bool) -> Runtime:
    """Parse the facts that the probe's subprocess printed; a missing fact is an error of its own.

    Args:
        stdout, stderr, returncode: of the subprocess.
        tensorflow, horovod: whether each is installed.

    >>> loaded = '{"tensorflow": {"version": "2.21.0", "gpus": []}}'
    >>> parse_probe(loaded, "", -11, tensorflow=True, horovod=True).horovod
    HorovodProbe(collectives=(), error='the process ended with status -11')
    """
    facts: dict[str, dict[str, object]] = {}
    for line in stdout.splitlines():
        if line.startswith('{"'):
            facts.update(json.loads(line))
    last_words = stderr.strip().splitlines()
    died = f"the process ended with status {returncode}" + (f": {last_words[-1]}" if last_words else "")

    def error_in(name: str) -> str | None:
        return str(facts[name]["error"]) if "error" in facts.get(name, {}) else None if name in facts else died

    tensorflow_probe = horovod_probe = None
    if tensorflow:
        gpus = facts.get("tensorflow", {}).get("gpus", [])
        tensorflow_probe = TensorflowProbe(
            gpus=tuple(map(str, gpus)) if isinstance(gpus, list) else (), error=error_in("tensorflow")
        )
    if horovod:
        built = facts.get("horovod", {}).get("collectives", {})
        names = tuple(name for name, has in built.items() if has) if isinstance(built, dict) else ()
        broken = "TensorFlow does not load" if tensorflow_probe is None or tensorflow_probe.error else None
        horovod_probe = HorovodProbe(collectives=names, error=broken or error_in("horovod"))
    return Runtime(tensorflow=tensorflow_probe, horovod=horovod_probe)


def probe_runtime() -> Runtime:
    """Load TensorFlow and Horovod, if installed, in a fresh process; takes seconds."""
    tensorflow, horovod = tensorflow_distribution() is not None, version_of("horovod") is not None
    if not tensorflow:
        return parse_probe("", "", 0, tensorflow=False, horovod=horovod)
    command = [sys.executable, "-c", _SCRIPT, *(["horovod"] if horovod else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        hung = f"loading it took over {_TIMEOUT_SECONDS} s"
        return parse_probe("", hung, -9, tensorflow=True, horovod=horovod)
    return parse_probe(done.stdout, done.stderr, done.returncode, tensorflow=True, horovod=horovod)
