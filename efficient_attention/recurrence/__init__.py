"""Recurrent cells over rows of vectors, as pure functions on arrays: tanh, GRU, LSTM and SRU."""
