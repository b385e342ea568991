"""Shared by softmax, sparsemax, entmax and hard: dense weights, a dense form in bounded memory, a cache."""
