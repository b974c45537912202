"""The former name of report.py."""

from navrl.scripts.report import main

if __name__ == "__main__":
    main()
