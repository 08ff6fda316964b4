"""The launcher's part of a run: it starts processes, listens to them, replaces the dead, and says how the run ended.

Each way to start them takes the command and the launcher's signals, and returns an `Ending`: `run_together`,
`Supervisor`, `LocalCluster`, `run_on_ray`. A further one needs a line in `training/launch.py`.
"""

__all__: list[str] = []
