"""Readers of Bigtable for layouts (`timebeam.schema.stores.Reader`)."""
