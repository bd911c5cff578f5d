"""One file per format: bytes to text with its parts. `registry` tells which one reads what."""
