"""Words for keys and values of planted facts: an adjective and a noun make some 4,000 of them."""

from __future__ import annotations

from random import Random

_ADJECTIVES = """
    amber ancient autumn bitter bold brave brisk broad calm careful clever cloudy copper crimson curious
    damp distant dusty eager early elegant faint famous fearless fluffy foggy fragile frosty gentle glossy
    golden graceful grumpy hasty hidden hollow humble icy idle ivory jolly keen lively lonely loud mellow
    mighty modest narrow nimble noisy patient plain polite proud quiet rapid rustic scarlet silent sleepy
    steady tidy velvet
"""
_NOUNS = """
    anchor anvil apron badger banjo barrel basket beacon beetle bonnet bridge bucket butter candle canyon
    carpet castle cellar cherry cradle cricket dagger dragon falcon feather fiddle forest garden ginger goblet
    hammer harbor helmet hermit island jacket kettle ladder lantern lizard magnet marble meadow mirror mitten
    needle orchard oyster paddle pebble pepper pigeon pillow pirate pocket puzzle rabbit ribbon saddle sailor
    spider turnip walnut
"""


def pair(random: Random) -> str:
    """Such as `quiet-lantern`."""
    return distinct_pairs(random, 1)[0]


def distinct_pairs(random: Random, count: int) -> list[str]:
    """`count` different ones."""
    adjectives, nouns = _ADJECTIVES.split(), _NOUNS.split()
    numbers = random.sample(range(len(adjectives) * len(nouns)), count)
    return [f"{adjectives[i // len(nouns)]}-{nouns[i % len(nouns)]}" for i in numbers]
