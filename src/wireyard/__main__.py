"""The command line, run as ``python -m wireyard``."""

from wireyard.cli import main

if __name__ == "__main__":
    main(prog_name="wireyard")
