"""`python -m attnport` is the command `attnport`."""

from attnport.cli import main

main()
