"""What the benchmarks are made of: programs that they start, and what several share."""
