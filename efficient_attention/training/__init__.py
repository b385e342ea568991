"""The train loop: state, step and what may join it (parts.py), optimizer, schedules, the parameters at the start.

`guarded_run.py` has what guards a run: lock, other processes, watchdog, report. `run_notes.py` has the lines that a run
prints before its first step.
"""
