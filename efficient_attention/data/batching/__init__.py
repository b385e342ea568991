"""Which rows make a batch, as a function of (seed, step): similar lengths, mixtures, each process's share."""
