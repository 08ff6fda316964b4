"""Forged and damaged files of each kind, and a process that runs commands on them, one after the other."""
