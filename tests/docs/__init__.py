"""What makes the generated parts of docs/reference."""
