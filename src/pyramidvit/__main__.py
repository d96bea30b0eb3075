"""`python -m pyramidvit` is the command line too."""

from pyramidvit.cli import main

if __name__ == "__main__":
    main()
