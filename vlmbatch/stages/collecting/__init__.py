"""What collect is made of: overlay and merge, the summary and its gate, and the files it writes."""
