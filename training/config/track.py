"""Options of what follows a run: files, TensorBoard, MLflow, traces."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import Options, is_function, key, require


@dataclass(frozen=True, kw_only=True)
class TrackConfig(Options, group="track"):
    """Options of the trackers of a run; "disk": written by libraries that know no other storage."""

    jsonl: str | None = key(None, "JSON Lines of all log entries and evaluations (path or URL)", kind="path")
    csv: str | None = key(None, "folder for steps.csv and evaluations.csv (path or URL)", kind="path")
    tensorboard: str | None = key(None, "folder for TensorBoard, on a disk", kind="disk")
    mlflow: str | None = key(None, "tracking server of MLflow, http://..., or a folder on a disk", kind="path")
    mlflow_experiment: str = key("ringfeed", "experiment of MLflow, which is created if need be")
    mlflow_run: str | None = key(None, "name of MLflow's run; null: it invents one")
    profile: str | None = key(None, "folder for a trace by TensorFlow's profiler, of rank 0, on a disk", kind="disk")
    profile_steps: tuple[int, ...] = key((10, 20), "first step of that trace, and the one after its last")
    own: tuple[str, ...] | None = key(None, "trackers of your own, each as module:function; null: none")
    timeline: str | None = key(None, "file of Horovod's timeline, on a disk of rank 0's host", kind="disk")

    def check(self) -> None:
        for name in self.own or ():
            require(is_function(name), "track.own", "a list of module:function", name)
        steps = self.profile_steps
        holds = len(steps) == 2 and 0 <= steps[0] < steps[1]
        require(holds, "track.profile_steps", "[first, stop] with 0 <= first < stop", list(steps))
