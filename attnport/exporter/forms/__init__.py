"""Forms of attention that several targets share. `canonical` brings q, k and v into one layout; `operands` and `masks`
write what goes into a form; `standard`, `contrib` and `blocks` are forms."""
