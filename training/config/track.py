"""Options of what follows a run: files, TensorBoard, MLflow, traces.

Tested in tests/training/config/test_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checks import is_function, key, require

__all__ = ["TrackConfig"]

_LOCAL = ("tensorboard", "profile", "timeline")  # written by libraries that know no other storage


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackConfig:
    """Options of the trackers of a run."""

    jsonl: str | None = key(None, "JSON Lines of all log entries and evaluations (path or URL)", is_path=True)
    csv: str | None = key(None, "folder for steps.csv and evaluations.csv (path or URL)", is_path=True)
    tensorboard: str | None = key(None, "folder for TensorBoard, on a disk", is_path=True)
    mlflow: str | None = key(None, "tracking server of MLflow, http://..., or a folder on a disk", is_path=True)
    mlflow_experiment: str = key("ringfeed", "experiment of MLflow, which is created if need be")
    mlflow_run: str | None = key(None, "name of MLflow's run; null: it invents one")
    profile: str | None = key(None, "folder for a trace by TensorFlow's profiler, of rank 0, on a disk", is_path=True)
    profile_steps: tuple[int, ...] = key((10, 20), "first step of that trace, and the one after its last")
    own: tuple[str, ...] | None = key(None, "trackers of your own, each as module:function; null: none")
    timeline: str | None = key(None, "file of Horovod's timeline, on a disk of rank 0's host", is_path=True)

    def __post_init__(self) -> None:
        for name in ("jsonl", "csv", "mlflow", *_LOCAL):
            value = getattr(self, name)
            require(value != "", f"track.{name}", "a path or URL, or null", value)
        for name in _LOCAL:
            value = getattr(self, name)
            require(value is None or "://" not in value, f"track.{name}", "a path on a disk, or null", value)
        for name in self.own or ():
            require(is_function(name), "track.own", "a list of module:function", name)
        steps = self.profile_steps
        holds = len(steps) == 2 and 0 <= steps[0] < steps[1]
        require(holds, "track.profile_steps", "[first, stop] with 0 <= first < stop", list(steps))
