"""What estimate is made of: the workload, the measured sample, the forecast, and the smoke verdict."""
