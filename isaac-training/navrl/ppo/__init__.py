"""Networks and their file formats."""
