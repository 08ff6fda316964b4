"""Tests of measurements go before other programs."""

from tests.helpers.going_first import before_other_programs  # noqa: F401
