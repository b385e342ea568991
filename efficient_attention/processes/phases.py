"""Records the current phase of a process, for scripts that kill or stop it there (scripts/stress).

For each new phase, a line is appended to the file that EFFICIENT_ATTENTION_PHASES names: seconds on this machine's
clock, the phase, and its step. Without the variable nothing is written. This file imports only the standard library, so
that an entry point can start with it.
"""

import os
import time

VARIABLE = 'EFFICIENT_ATTENTION_PHASES'
IMPORTS = 'imports'
PREPARATION = 'preparation'
RESTORING = 'restoring'  # also initialising the first state; begins with the removal of a killed process's files
COMPILATION = 'compilation'  # includes the first step
INPUT = 'input'  # loading a step's batch
STEP = 'step'
EVALUATION = 'evaluation'
SAVE = 'save'
SEALING = 'sealing'  # in parallel with training
SEALED = 'sealed'
READING = 'reading'  # loading the model to export
WRITING = 'writing'  # writing an export
END = 'end'  # all steps are done and saved; report, files and threads are being closed

_path = os.environ.get(VARIABLE)


def note_phase(phase: str, step: int = 0) -> None:
    """Records that a phase begins, in a single write, so that a kill here leaves a complete line or none."""
    if _path:
        descriptor = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f'{time.monotonic():.6f} {phase} {step}\n'.encode())
        finally:
            os.close(descriptor)
