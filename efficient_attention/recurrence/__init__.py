"""Recurrent cells (tanh, GRU, LSTM and SRU) over rows of vectors, as pure functions on arrays."""
