"""Programs that pages call and a test cannot: each checks its arguments and does the part that matters."""
