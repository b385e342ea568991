"""Logs the phases of a process, such as compilation or save, for scripts that kill or stop it in a chosen phase.

The scripts are in scripts/stress. For each new phase, a line is appended to the file that EFFICIENT_ATTENTION_PHASES
names: seconds on this machine's clock, the phase, and its step. Without the variable nothing is written. This file
imports only the standard library, so that an entry point can start with it.
"""

import os
import time

VARIABLE = 'EFFICIENT_ATTENTION_PHASES'
IMPORTS = 'imports'
PREPARATION = 'preparation'
# This phase removes files of a killed process, and then loads a checkpoint or initialises the state.
RESTORING = 'restoring'
COMPILATION = 'compilation'  # the phase of compilation, including the first step
INPUT = 'input'  # the phase in which a step's batch is loaded
STEP = 'step'
EVALUATION = 'evaluation'
SAVE = 'save'
SEALING = 'sealing'  # the phase in which a thread computes a checkpoint's checksums, in parallel with training
SEALED = 'sealed'
READING = 'reading'  # the phase in which the model to export is loaded
WRITING = 'writing'  # the phase in which an export is written
END = 'end'  # the phase after the last save, in which the report is written and files and threads are closed

_path = os.environ.get(VARIABLE)


def note_phase(phase: str, step: int = 0) -> None:
    """Logs, in one single write, that a phase of this process begins; a kill therefore cannot leave an incomplete
    line.
    """
    if _path:
        descriptor = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f'{time.monotonic():.6f} {phase} {step}\n'.encode())
        finally:
            os.close(descriptor)
