"""`python -m attnport` is the command `attnport`."""

from attnport.cli import main

if __name__ == "__main__":
    main()
