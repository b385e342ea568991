"""What each preparation does: folders of the cache, held-out documents, worker processes, progress."""
