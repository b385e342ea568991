"""Steps that every preparation shares: cache folders, held-out documents, worker processes, progress."""
