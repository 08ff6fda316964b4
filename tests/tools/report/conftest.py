"""Tests of measurements go before other programs."""
