"""Controls processes: stop signals, watchdog, memory allocator, child processes, and links between a run's processes.

An entry point first imports signal_thread.py. A training run handles stop signals with graceful_stop.py. If a run has
several processes, they agree with stop_agreement.py on the step at which they stop.
"""
