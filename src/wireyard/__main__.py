"""``python -m wireyard`` is the command line."""

from wireyard.cli import main

if __name__ == "__main__":
    main(prog_name="wireyard")
