"""`python -m navrl` is the command `navrl`."""

from navrl.cli import main

if __name__ == "__main__":
    main()
