"""What the report is made of: columns, pages of data, and the pictures in them."""
