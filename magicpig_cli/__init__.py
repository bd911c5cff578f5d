"""magicpig: answers about documents far longer than a consumer GPU can hold."""

__version__ = "0.1.0"
