"""Thin Flax NNX modules: parameters and their names, then calls into `attention` and `recurrence`.

A layer that needs neither, such as the feed-forward layer, computes in place.
"""
