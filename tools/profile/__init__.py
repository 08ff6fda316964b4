"""The profiler: measures the loader stage by stage, and names its bottleneck and the knob that helps."""

from .measure import Profile, StageProfile, profile, profile_run

__all__ = ["Profile", "StageProfile", "profile", "profile_run"]
