"""The configuration of a run, from YAML and the command line, checked before TensorFlow is imported.

The keys of a group stand in the module of its name, but for these; keys without a group stand in `train_config`:

- augment: `model`
- checkpoint, output: `outputs`
- ema, loss_scale: `schedule`
- mirrored, parameter_server: `backend`
- optimizer: `optimizers`
Tested in tests/training/config/test_config.py and tests/training/config/test_methods.py.
"""

__all__: list[str] = []
