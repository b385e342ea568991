"""How a process stops, hangs and keeps memory, and how the processes of a run find and watch one another."""
