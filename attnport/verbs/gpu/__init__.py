"""What `gpu-check` measures beside `check` and `bench`: subjects, peaks, and its report."""
