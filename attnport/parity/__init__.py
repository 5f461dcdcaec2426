"""Everything that judges numbers: sizes of an export, cases, metrics, the bound, padding invariance, a wrong layer."""
