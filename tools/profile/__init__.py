"""The profiler: measures loader and training part by part, names the bottleneck, and what helps."""

from .bottleneck import StageProfile
from .measure import profile, profile_run
from .result import Profile

__all__ = ["Profile", "StageProfile", "profile", "profile_run"]
