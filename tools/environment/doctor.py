"""`ringfeed doctor`: what is installed, what works, what is missing, and the command that installs or repairs it.

It changes nothing and opens no connection. `examine` collects the facts, `diagnose` (pure) judges them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table

from ringfeed.sharding.messages import printable
from ringfeed.tools.console import SafeConsole
from ringfeed.tools.probe import Runtime, horovod_target, probe_runtime, tensorflow_distribution, version_of

from .horovod_recipe import HOROVOD_VERSION

BASE = ("pyarrow", "numpy", "fsspec", "s3fs")
GIBIBYTE = 2**30
COMPILED = ("...sharding.compute._kernels", "...pipeline.deliver._operations", "...pipeline.transforms._images")
REBUILD_HOROVOD = "ringfeed install-horovod --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of this machine and Python environment; a package that is not installed has the version None."""

    versions: Mapping[str, str | None]
    kernels: bool
    runtime: Runtime
    horovod_built_for: str | None
    gpus: tuple[str, ...]
    interfaces: tuple[str, ...]
    cpu_cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is missing, or `broken`, and the command that fixes it."""

    what: str
    command: str
    broken: bool = False


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Find what is missing and what is broken. Only a broken part makes `ringfeed doctor` fail."""
    versions = facts.versions
    findings = [
        Finding(what=f"{name} is not installed: sharding cannot work", command=f"pip install {name}", broken=True)
        for name in BASE
        if versions[name] is None
    ]
    if not facts.kernels:
        command = "apt-get install -y gcc libc6-dev && pip install --force-reinstall --no-deps ringfeed"
        findings.append(Finding(what="compiled kernels: everything works without them, but slower", command=command))
    findings += [*_diagnose_tensorflow(facts), *_diagnose_horovod(facts)]
    if versions["hdfs-native"] is None:
        findings.append(Finding(what="hdfs-native: datasets on hdfs://", command="pip install 'ringfeed[hdfs]'"))
    return tuple(findings)


def _diagnose_horovod(facts: Facts) -> list[Finding]:
    versions, tensorflow, probe = facts.versions, facts.runtime.tensorflow, facts.runtime.horovod
    if probe is None:
        if tensorflow is None:
            return []
        return [Finding(what="Horovod: training on several ranks", command="ringfeed install-horovod")]
    if facts.horovod_built_for not in (None, versions["tensorflow"]):
        installed = versions["tensorflow"] or "none"
        what = f"Horovod was built for TensorFlow {facts.horovod_built_for}, but {installed} is installed"
        return [Finding(what=what, command=REBUILD_HOROVOD, broken=True)]
    if probe.error:
        return [Finding(what=f"Horovod does not load: {probe.error}", command=REBUILD_HOROVOD, broken=True)]
    if versions["horovod"] != HOROVOD_VERSION:
        what = f"Horovod is {versions['horovod']}; ringfeed is tested with {HOROVOD_VERSION}"
        return [Finding(what=what, command="ringfeed install-horovod")]
    if "gloo" not in probe.collectives:
        what = "Horovod was built without Gloo, which `horovodrun --gloo` needs"
        return [Finding(what=what, command=REBUILD_HOROVOD, broken=True)]
    if tensorflow and tensorflow.gpus and "nccl" not in probe.collectives:
        what = "NCCL: without it, GPUs exchange gradients through the CPU"
        return [Finding(what=what, command="ringfeed install-horovod --nccl yes")]
    return []


def _diagnose_tensorflow(facts: Facts) -> list[Finding]:
    probe = facts.runtime.tensorflow
    extra = "gpu" if facts.gpus else "cpu"
    install = f"pip install 'ringfeed[{extra}]'"
    if probe is None:
        return [Finding(what="TensorFlow: loading batches and training", command=install)]
    if probe.error:
        name = "tensorflow" if facts.gpus else "tensorflow-cpu"
        command = f"pip install --force-reinstall --no-deps {name}=={facts.versions['tensorflow']}"
        return [Finding(what=f"TensorFlow does not load: {probe.error}", command=command, broken=True)]
    if facts.gpus and not probe.gpus:
        return [Finding(what=f"TensorFlow uses none of the {len(facts.gpus)} GPUs here", command=install)]
    return []


def _gpus() -> tuple[str, ...]:
    """Return the GPUs that the driver lists; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()


def examine() -> Facts:
    """Collect the facts; takes seconds, because TensorFlow and Horovod are loaded (in a process of their own)."""
    tensorflow = tensorflow_distribution()
    others = ("keras", "horovod", "hdfs-native")
    return Facts(
        versions={
            "python": platform.python_version(),
            "ringfeed": version_of("ringfeed"),
            **{name: version_of(name) for name in BASE},
            "tensorflow": tensorflow[1] if tensorflow else None,
            **{name: version_of(name) for name in others},
        },
        kernels=all(find_spec(name, __package__) for name in COMPILED),
        runtime=probe_runtime(),
        horovod_built_for=horovod_target(),
        gpus=_gpus(),
        interfaces=tuple(name for _, name in socket.if_nameindex() if name != "lo"),
        cpu_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def report(facts: Facts, findings: tuple[Finding, ...]) -> dict[str, object]:
    """Return the document that `--json` prints."""
    runtime = facts.runtime
    return {
        "ok": not any(finding.broken for finding in findings),
        "versions": dict(facts.versions),
        "kernels": facts.kernels,
        "horovod": None
        if runtime.horovod is None
        else {
            "loads": runtime.horovod.error is None,
            "built_for_tensorflow": facts.horovod_built_for,
            "collectives": list(runtime.horovod.collectives),
        },
        "gpus": list(facts.gpus),
        "tensorflow_gpus": list(runtime.tensorflow.gpus) if runtime.tensorflow else [],
        "clients": {
            "s3": facts.versions["s3fs"] is not None,
            "hdfs": facts.versions["hdfs-native"] is not None,
        },
        "interfaces": list(facts.interfaces),
        "cpu_cores": facts.cpu_cores,
        "memory_bytes": facts.memory_bytes,
        "findings": [asdict(finding) for finding in findings],
    }


def _show(facts: Facts, findings: tuple[Finding, ...], console: Console) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, version in facts.versions.items():
        table.add_row(name, (version and printable(version)) or "[yellow]not installed[/yellow]")
    horovod = facts.runtime.horovod
    if horovod is not None:
        names = ", ".join(horovod.collectives) or "unknown: it does not load"
        table.add_row("collectives", f"{names} (built for TensorFlow {facts.horovod_built_for or 'unknown'})")
    off = ", but switched off by RINGFEED_KERNELS=0" if os.environ.get("RINGFEED_KERNELS") == "0" else ""
    table.add_row("kernels", f"compiled{off}" if facts.kernels else "[yellow]not compiled[/yellow]")
    table.add_row("GPUs", printable(", ".join(facts.gpus)) or "none")
    clients = {"S3": facts.versions["s3fs"], "HDFS": facts.versions["hdfs-native"]}
    table.add_row("storage clients", ", ".join(["local", *(name for name, found in clients.items() if found)]))
    interfaces = ", ".join(facts.interfaces) or "none"
    table.add_row("network interfaces", f"{interfaces} (horovodrun needs one of the same name on each host)")
    table.add_row("CPU cores, memory", f"{facts.cpu_cores}, {facts.memory_bytes / GIBIBYTE:.1f} GiB")
    console.print(table)
    for finding in findings:
        mark = "[red]broken[/red] " if finding.broken else "[yellow]missing[/yellow]"
        console.print(mark, end=" ")
        console.print(
            f"{printable(finding.what)}\n          {printable(finding.command)}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if not findings:
        console.print("[green]complete[/green]: nothing is missing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed doctor`."""
    parser.description = (
        "Report versions, Horovod's collectives, GPUs and storage clients, and how to install what is missing. The "
        "exit status is 0 if sharding works and nothing installed is broken, else 1."
    )
    parser.epilog = "examples:\n  ringfeed doctor\n  ringfeed doctor --json | jq .findings\n"
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Run `ringfeed doctor`."""
    facts = examine()
    findings = diagnose(facts)
    if args.json:
        print(json.dumps(report(facts, findings), indent=2))
    else:
        _show(facts, findings, SafeConsole())
    return int(any(finding.broken for finding in findings))
