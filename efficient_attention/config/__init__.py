"""Defines and checks the config of a run in frozen dataclasses, one file per config group."""
