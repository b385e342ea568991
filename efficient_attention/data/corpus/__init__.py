"""Pretraining of encoders: a corpus of documents as sentences of ids on disk, and masked rows out of it."""
