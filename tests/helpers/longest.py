"""Test files that take minutes: the whole suite begins with them, and `make quick` leaves them to it."""

__all__ = ["LONGEST"]

LONGEST = (
    "tests/training/test_train.py",
    "tests/training/compression/test_methods.py",
    "tests/training/ring/test_ring.py",
    "tests/training/test_launch.py",
    "tests/training/test_listeners.py",
    "tests/test_forged_files.py",
    "tests/training/elastic/test_ray_ranks.py",
    "tests/training/backends/test_parameter_server.py",
    "tests/training/records/test_real_runs.py",
    "tests/tools/demo/test_run.py",
    "tests/tools/profile/test_measure.py",
    "tests/test_notebooks.py",
    "tests/tools/test_signals.py",
    "tests/training/ring/test_worker_ring.py",
    "tests/tools/shard_dataset/test_program.py",
    "tests/tools/shard_dataset/test_errors.py",
    "tests/sharding/building/test_build_faults.py",
    "tests/sharding/engines/test_engine.py",
    "tests/sharding/building/test_resume.py",
    "tests/sharding/building/test_append.py",
    "tests/sharding/building/test_append_faults.py",
    "tests/sharding/repairing/test_rebuild_plan.py",
)
