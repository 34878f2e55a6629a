"""Messages and files cut into blocks of whole records, and parsed into points."""
