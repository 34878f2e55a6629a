"""What every store, format and job shares: points in columns, rows and cells, and what a store must do."""
