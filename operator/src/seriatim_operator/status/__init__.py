"""What is reported: one function for each condition, with closed reasons."""
