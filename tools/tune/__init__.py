"""The tuner: searches a loader's options with the simulator, and confirms the best of them by measurement."""

from ringfeed.tools.report.tuning_result import Tuning

from .tune import tune

__all__ = ["Tuning", "tune"]
