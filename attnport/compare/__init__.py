"""Test cases, the parity verdict and latency statistics: arrays and samples in, report values out."""
