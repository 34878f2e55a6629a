"""What the steps of every pipeline share."""
