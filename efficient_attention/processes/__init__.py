"""Process control: stop signals, watchdog, allocator, child processes, and connections between a run's processes.

An entry point begins with signal_thread.py. A run handles stop signals with stop_signal.py. With several processes, all
agree on the step of the stop with stop_agreement.py.
"""
