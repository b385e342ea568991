"""Flax NNX modules: named parameters, and calls into the functions of `attention` and `recurrence`.

Modules that need neither package, such as the feed-forward layer, contain their arithmetic.
"""
