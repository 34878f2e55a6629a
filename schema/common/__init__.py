"""Code that several packages of schema share."""
