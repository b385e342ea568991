"""Trains the models of every task: the training loop, the jitted step, the optimizer, learning-rate schedules and
initial parameters.

Start with `loop.py`. `guarded_run.py` protects a run: workdir lock, comparison with other processes, watchdog, report.
`startup_notes.py` holds the notes that a run prints before its first step.
"""
