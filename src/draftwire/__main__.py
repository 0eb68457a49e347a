"""``python -m draftwire``: the command line."""

from draftwire.cli.main import main

if __name__ == "__main__":
    main()
