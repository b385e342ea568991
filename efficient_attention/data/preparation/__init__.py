"""Tools that all data preparation shares: cache folders, held-out documents, worker processes, progress bars."""
