"""Files that are whole or absent, a disk that may fail, tensors shared with a saver."""
