"""Pure attention functions on arrays: no Flax, no config, no state."""
