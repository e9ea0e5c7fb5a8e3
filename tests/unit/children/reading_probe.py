"""The same child, which may still read files."""

from tests.unit.children.probe import main

if __name__ == "__main__":
    main()
