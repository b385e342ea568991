"""Training of every task: the loop, the step and its optional parts, optimizer, schedules, initial parameters.

Start with `loop.py`. `guarded_run.py` protects a run: workdir lock, comparison with other processes, watchdog, report.
`run_notes.py` holds the notes that a run prints before its first step.
"""
