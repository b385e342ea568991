"""The train loop and its parts: state, step, optimizer, schedules, the parameters that a run starts from."""
