"""python -m flowcheck"""

from flowcheck.cli import main

if __name__ == "__main__":
    main()
