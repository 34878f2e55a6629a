"""Readers of Bigtable for layouts (`timebeam.schema.core.reading.Reader`)."""
