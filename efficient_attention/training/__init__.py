"""The train loop and its parts: state, step, optimizer, schedules, the parameters that a run starts from.

`guarded_run.py` has what guards a run: lock, other processes, watchdog, report. `run_notes.py` has the lines that a run
prints before its first step.
"""
