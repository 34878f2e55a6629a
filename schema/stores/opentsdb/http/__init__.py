"""OpenTSDB's read API, pure: a request becomes a checked query, an answer becomes a TSD's JSON.

docs/spec/opentsdb.md §8. No web framework and no Bigtable: `timebeam.pipelines.serve` brings both.
"""
