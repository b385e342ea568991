"""Flax NNX modules of a layer: they hold named parameters and call the pure functions of the packages `attention` and
`recurrence`.

Modules that use neither package, such as the feed-forward layer, compute their results themselves.
"""
