"""Selects the rows of each batch as a function of (seed, step): groups rows by length, mixes datasets by shares,
divides a batch among processes."""
