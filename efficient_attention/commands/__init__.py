"""What every command does around its work: flags, hosts, signals, the allocator."""
