"""Readers of Bigtable for layouts (`timebeam.schema.layouts.Reader`)."""
