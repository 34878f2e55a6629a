"""What layouts read with (`timebeam.schema.layouts.Reader`), over the Bigtable connector."""
