"""The profiler: measures loader and training part by part, names the bottleneck, and what helps."""

from .measure import profile, profile_run
from .result import Profile
from .verdicts.bottleneck import StageProfile

__all__ = ["Profile", "StageProfile", "profile", "profile_run"]
