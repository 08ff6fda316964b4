"""The longest test files, the longest first: the whole suite begins with them, and `make quick` leaves them to it.

`python -m tests.helpers.durations build/junit.xml` prints those of the last `make test`.
"""

__all__ = ["LONGEST"]

LONGEST = (
    "tests/training/servers/test_worker_loop.py",
    "tests/training/sync/compression/test_methods.py",
    "tests/training/test_train.py",
    "tests/tools/demo/test_run.py",
    "tests/sharding/engines/test_engine.py",
    "tests/training/keras/test_multi_worker.py",
    "tests/training/servers/test_parameter_server.py",
    "tests/training/test_launch.py",
    "tests/training/run/test_remedies.py",
    "tests/training/run/test_modes.py",
    "tests/training/launching/test_host_group.py",
    "tests/training/test_listeners.py",
    "tests/test_forged_files.py",
    "tests/training/ring/test_ring.py",
    "tests/training/servers/test_row_shards.py",
    "tests/training/records/test_real_runs.py",
    "tests/training/launching/test_ray_ranks.py",
    "tests/sharding/building/test_build_faults.py",
    "tests/sharding/building/test_resume.py",
    "tests/sharding/repairing/test_rebuild_plan.py",
    "tests/tools/profile/test_measure.py",
    "tests/tools/measure/test_training_trials.py",
    "tests/tools/tune/test_tune.py",
    "tests/tools/simulation/test_bench_ring.py",
    "tests/tools/test_kills.py",
    "tests/tools/test_signals.py",
    "tests/sharding/sources/files/test_http_listing.py",
    "tests/test_notebooks.py",
    "tests/training/ring/test_worker_ring.py",
    "tests/test_documents.py",
    "tests/test_release.py",
    "tests/tools/test_dlio.py",
    "tests/sharding/building/test_append.py",
    "tests/sharding/building/test_append_faults.py",
)
