"""Speed and memory, as ratios taken in one run."""
