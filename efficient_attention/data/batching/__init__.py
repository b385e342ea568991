"""Which rows make a batch, from (seed, step) alone: lengths, mixtures, and each process's share of them."""
