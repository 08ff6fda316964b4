"""Trackers follow a run: files, TensorBoard, MLflow, a profiler. The loop knows only their interface."""

__all__: list[str] = []
