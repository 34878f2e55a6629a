"""`timebeam serve`: OpenTSDB's read API over HTTP."""
