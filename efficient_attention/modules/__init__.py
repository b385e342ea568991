"""Thin Flax NNX modules: parameters and their names, then calls into `attention` and `recurrence`.

Modules that need neither, such as the feed-forward layer, contain their own arithmetic.
"""
