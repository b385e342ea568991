"""Tokenizers: those in files, those that are trained on a text, and the words and ids that all of them share."""
