"""Readers of Bigtable for layouts (`timebeam.schema.core.selection.Reader`)."""
