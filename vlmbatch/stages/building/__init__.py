"""What build is made of: the plan that options become, and the press that writes the folder."""
