"""Runs commands in `worker`, and starts another one if a file kills it, or lets it hang."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.lean import lean_environment

_HANG_SECONDS = 180.0  # of a busy machine; the campaign reports the longest time
_NOISE = ("absl::", "oneDNN", "cpu_feature_guard", "To enable the following")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its status, or what it raised, or None if it was killed; its lines on standard error."""

    status: int | str | None
    lines: list[str]
    mib: float = 0.0
    seconds: float = 0.0


class CommandProcess:
    """A process that imports everything once. Its folder is the current one of the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None

    def run(self, words: Sequence[str]) -> Outcome:
        """Run a command, such as ``["ringfeed", "profile", "records"]``."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.forging.worker"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(words)) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], _HANG_SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line:
            self.close()
            return Outcome("no end" if not ready else f"killed ({process.returncode})", [])
        found = json.loads(line)
        lines = [text for text in found["stderr"].splitlines() if text.strip() and not any(n in text for n in _NOISE)]
        return Outcome(found["status"], lines, found["kib"] / 1024, found["seconds"])

    def _environment(self) -> dict[str, str]:
        environment = lean_environment({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""})
        root = str(Path(__file__).resolve().parents[3])
        return environment | {"PYTHONPATH": f"{root}:{environment['PYTHONPATH']}"}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
