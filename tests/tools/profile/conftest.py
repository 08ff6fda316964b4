"""Tests of measurements go before other programs."""

from tests.helpers.going_first import before_other_programs

__all__ = ["before_other_programs"]
