"""Profile a run of `ringfeed train`, finished or under way, from the records of its ranks."""

from .records import read_run
from .result import RunProfile, profile_records

__all__ = ["RunProfile", "profile_records", "read_run"]
