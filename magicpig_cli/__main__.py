"""`python -m magicpig_cli` is the `magicpig` command."""

from magicpig_cli.cli.app import main

if __name__ == "__main__":
    main()
