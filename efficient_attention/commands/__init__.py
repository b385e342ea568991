"""Code that every command runs around its own work: flags, hosts, signals, the allocator."""
