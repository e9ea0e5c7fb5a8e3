"""What the one account of a service is charged from a moment on, read from its store."""

from tests.contract.purse import wait_until
from tests.contract.wire import Wire
from tests.fault.books import Books
from tests.service import Service

CHARGES = "SELECT amount_nano FROM entries WHERE kind = 'charge' ORDER BY id"


class Till:
    """Cheaper than an account of its own, for tests that ask one after the other."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.wire = Wire(service.port, service.key)
        self.books = Books(service.folder / "data" / "cadenza.db")
        self._before = self.books.charges

    @property
    def charges_nano(self) -> list[int]:
        return [-row["amount_nano"] for row in self.books.query(CHARGES)[self._before :]]

    def charge_nano(self) -> int:
        """The only charge."""
        [charge_nano] = self.charges_nano
        return charge_nano

    def wait_until_ended(self) -> None:
        wait_until(lambda: self.books.open_holds == 0, "every hold being ended")

    def prove(self) -> None:
        self.wait_until_ended()
        self.books.prove()
