"""Files of a run: saved without holding training up, written whole or not at all, checked when read."""
