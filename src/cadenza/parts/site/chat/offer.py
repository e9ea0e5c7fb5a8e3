"""Whether search, memory and attachments are offered by the service and used by the account, for the pages."""

import msgspec

from cadenza.gateway.gateway import Gateway
from cadenza.gateway.grounding import SearchTerms
from cadenza.routing.catalogue import Catalogue
from cadenza.store.tables.accounts import Account

IMAGE_TYPES = "image/png,image/jpeg,image/webp,image/gif"  # sent to the model as they are
VISION, FILES = frozenset({"vision"}), frozenset({"files"})


class Offer(msgspec.Struct, frozen=True):
    """What the service offers, whether or not an account uses it."""

    memory: bool
    search: bool
    files: bool  # read here, or taken by the model of a class
    image_classes: tuple[str, ...]  # whose models take images
    search_terms: SearchTerms | None = None
    reads_files: bool = False  # here, so that they can be measured

    @property
    def accept(self) -> str:
        """The `accept` attribute of the file input. Empty: all types."""
        return "" if self.files else IMAGE_TYPES


class ChatSwitches(msgspec.Struct, frozen=True):
    """The parts that a conversation can turn off. If there are none, `note` may say why."""

    parts: tuple[str, ...] = ()
    note: str = ""


def offer_of(gateway: Gateway) -> Offer:
    offer, catalogue = gateway.grounder.offer(), gateway.snapshot.catalogue
    reads_files = offer.measure is not None
    return Offer(
        memory=offer.memory,
        search=offer.search is not None,
        files=reads_files or bool(catalogue.able_classes(FILES)),
        image_classes=catalogue.able_classes(VISION),
        search_terms=offer.search,
        reads_files=reads_files,
    )


def class_terms(catalogue: Catalogue, now_ms: int) -> dict[str, str]:
    """What each class costs, and whether it takes images."""
    with_images, terms = catalogue.able_classes(VISION), dict[str, str]()
    for model in catalogue.models(now_ms).data:
        if model.pricing:
            price = f"${model.pricing.input} in, ${model.pricing.output} out for a million tokens"
            terms[model.id] = f"{price} · takes images" if model.id in with_images else price
    return terms


def input_prices(catalogue: Catalogue, now_ms: int) -> dict[str, str]:
    """What a million tokens of input cost, by class."""
    return {model.id: model.pricing.input for model in catalogue.models(now_ms).data if model.pricing}


def chat_switches(offer: Offer, account: Account) -> ChatSwitches:
    parts = (("search", offer.search, account.uses_search), ("memory", offer.memory, account.uses_memory))
    offered = {name: is_used for name, is_offered, is_used in parts if is_offered}
    used = tuple(name for name, is_used in offered.items() if is_used)
    if used or not offered:
        return ChatSwitches(used)
    verb = "are" if len(offered) > 1 else "is"
    return ChatSwitches(note=f"{' and '.join(offered).capitalize()} {verb} turned off")
