"""The profiler: measures loader and training part by part, names the bottleneck, and what helps."""

from ringfeed.tools.report.profile_result import Profile
from ringfeed.tools.verdict.bottleneck import StageProfile

from .measure import profile, profile_run

__all__ = ["Profile", "StageProfile", "profile", "profile_run"]
