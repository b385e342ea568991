"""Attention mechanisms as pure functions on arrays: `attend` computes any mechanism;
each mechanism has a folder here.
"""
