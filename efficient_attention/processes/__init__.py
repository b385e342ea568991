"""Stop signals, watchdog, allocator, child processes; how the processes of a run meet, watch one another and stop.

An entry point begins with stopping.py; a run expects its stop with stop_signal.py and, of several processes, agrees on
the step with stop_point.py.
"""
