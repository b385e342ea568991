"""Frozen dataclasses that define and check the config of a run, one file per config group."""
