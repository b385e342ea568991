"""The train loop and its parts: state, step, optimizer, sharding, checkpoints, logs."""
