"""What a run learns: data, objective and metrics behind one seam, so that one loop serves every task."""
