"""An epoch of the loader beside the readers of other projects, each in its own format, environment and process.

Every rival writes the same table with what its documentation recommends, reads one epoch that is not counted (imports,
workers and the page cache are warm then), and waits for its turn: in each round everyone reads one shuffled epoch in
batches of 1024, delivered as NumPy arrays. One that does not install or run gets a line that says why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from parts.rival_formats import RIVALS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".venv-rivals"


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of rows per second: `Loader.numpy_epoch` against each rival that installs and runs."""
    children = {name: child for name in RIVALS if (child := _start(name, folder)) is not None}
    rates: dict[str, list[float]] = {name: [] for name in children}
    for _ in range(rounds):
        for name, child in children.items():
            rates[name].append(float(ask(child)))
    for child in children.values():
        child.communicate()
    for name, values in rates.items():
        print(f"  rows/s: {name} {median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})")
    ours = rates.pop("Loader.numpy_epoch")
    return [
        (f"numpy_epoch, against {name}", [one / other for one, other in zip(ours, values, strict=True)], 1)
        for name, values in rates.items()
    ]


def _start(name: str, folder: Path) -> subprocess.Popen[str] | None:
    """The process of a rival that has written its files and read an epoch, or none, and why."""
    own = folder / "rivals" / name.replace(" ", "-")
    own.mkdir(parents=True, exist_ok=True)
    log = own.with_suffix(".log")
    arguments = [str(HERE / "parts" / "rival_formats.py"), name, str(folder / "source.parquet"), str(own)]
    try:
        child = started(RIVALS[name].environment, arguments, log)
        ask(child)
    except (OSError, subprocess.SubprocessError, ValueError):
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        print(f"  {name} does not run here: {next((line for line in reversed(lines) if line.strip()), 'no message')}")
        return None
    return child


def started(environment: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[str]:
    """A Python program in an environment, which answers the lines that it gets; its errors go to a log."""
    python = _python(environment, log)
    with log.open("a") as errors:
        pipe = subprocess.PIPE
        return subprocess.Popen([python, *arguments], stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=HERE)


def is_made(name: str) -> bool:
    """Whether an environment is there, with the releases that rivals.txt names now."""
    made = ENVIRONMENTS / name / "requirements"
    return not name or (made.exists() and made.read_text() == _requirements(name))


def _requirements(name: str) -> str:
    return (HERE / "rivals.txt").read_text().split(f"# environment: {name}\n")[1].split("# environment:")[0]


def _python(name: str, log: Path) -> str:
    """The Python of an environment, made at need of the lines below its name in rivals.txt."""
    if not name:
        return sys.executable
    home, part = ENVIRONMENTS / name, _requirements(name)
    python = str(home / "bin" / "python")
    if not is_made(name):
        pins = [line for line in part.splitlines() if line and not line.startswith("#")]
        with log.open("a") as out:
            for command in ([sys.executable, "-m", "venv", str(home)], [python, "-m", "pip", "install", "-q", *pins]):
                subprocess.run(command, check=True, stdout=out, stderr=out)
        (home / "requirements").write_text(part)
    return python


def ask(child: subprocess.Popen[str], line: str = "") -> str:
    """The answer of a process to a line.

    Raises:
        ValueError: it ended without one.
    """
    assert child.stdin
    assert child.stdout
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    if not (answer := child.stdout.readline()):
        raise ValueError("the process ended; its log says why")
    return answer
