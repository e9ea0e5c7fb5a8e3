"""The program that parses large bodies where this part is: the core's, with the translators."""

from cadenza.gateway.large.child import main
from cadenza.parts.protocols.translators import TRANSLATORS

if __name__ == "__main__":
    main(TRANSLATORS)
