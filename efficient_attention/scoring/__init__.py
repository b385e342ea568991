"""Scores language models by likelihood: pairs of context and continuation, whole texts, and problems read from
files.
"""
