"""Records to the keys, rows and cells of declared tables, and back."""
