"""Measure the loader stage by stage, and name what holds it back."""

from .measure import Profile, StageProfile, profile

__all__ = ["Profile", "StageProfile", "profile"]
