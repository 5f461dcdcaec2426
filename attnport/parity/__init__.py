"""Everything that judges numbers: cases, metrics, the bound, padding invariance, the search for a wrong layer."""
