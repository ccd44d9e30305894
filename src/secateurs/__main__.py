"""`python -m secateurs` is `secateurs`."""

from secateurs.cli import main

if __name__ == "__main__":
    main()
