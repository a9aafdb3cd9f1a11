"""What run is made of: the task at hand, and the two channels that see to it."""
