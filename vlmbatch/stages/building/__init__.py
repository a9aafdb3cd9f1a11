"""What build is made of: the plan that options become, the press that writes the folder, and what is refused."""
