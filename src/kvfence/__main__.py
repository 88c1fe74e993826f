"""`python -m kvfence` is the `kvfence` command."""

from kvfence.cli.main import run

if __name__ == "__main__":
    run()
