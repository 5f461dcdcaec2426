"""What `gpu-check` has beside `check` and `bench`: models, peak rates, and its report."""
