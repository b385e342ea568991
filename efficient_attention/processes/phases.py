"""Notes what a process is at, for scripts that kill or stop it there (soak.py and measure_stops.py in scripts/stress).

The file that EFFICIENT_ATTENTION_PHASES names gets a line for each phase that begins: seconds on the clock of this
machine, the phase, and the step that it belongs to. Without the variable nothing is written. This file needs Python
alone, so that an entry point can begin with it.
"""

import os
import time

VARIABLE = 'EFFICIENT_ATTENTION_PHASES'
IMPORTS = 'imports'
PREPARATION = 'preparation'
RESTORING = 'restoring'  # or drawing the first state; what a killed process left is cleaned up before
COMPILATION = 'compilation'  # and the first step
INPUT = 'input'  # of a step: its batch
STEP = 'step'
EVALUATION = 'evaluation'
SAVE = 'save'
SEALING = 'sealing'  # beside the training
SEALED = 'sealed'
READING = 'reading'  # what is exported
WRITING = 'writing'  # an export
END = 'end'  # all steps are done and saved; the report, files and threads are closed

_path = os.environ.get(VARIABLE)


def note_phase(phase: str, step: int = 0) -> None:
    """Notes that a phase begins, in one write, so that a process killed here has noted it or not."""
    if _path:
        descriptor = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f'{time.monotonic():.6f} {phase} {step}\n'.encode())
        finally:
            os.close(descriptor)
