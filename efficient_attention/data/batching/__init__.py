"""Selects the rows of each batch as a function of (seed, step): by length, by mixture shares, and per process."""
