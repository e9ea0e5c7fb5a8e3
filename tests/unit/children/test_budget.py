"""Budgets of CPU time: an owner that uses more than its share waits, but only for others."""

from cadenza.children.turns import RECENT_S, CpuBudget, CpuBudgets


class Clock:
    """Stands still until it is moved."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def new_budgets() -> tuple[CpuBudgets, Clock]:
    clock = Clock()
    return CpuBudgets(CpuBudget(burst_s=10, per_s=0.5), clock), clock


def test_an_owner_alone_may_use_all() -> None:
    """Whatever it has used, it need not wait while nobody else uses the child."""
    budgets, clock = new_budgets()
    budgets.note("other")
    budgets.charge("hog", 1000)
    assert budgets.wait_s("hog") > 0
    clock.now_s += RECENT_S
    budgets.note("hog")
    budgets.charge("other", 1)  # its last task has left something to do, but it did not come again
    budgets.charge("hog", 1000)
    assert budgets.wait_s("hog") == 0


def test_a_budget_refills_with_time() -> None:
    """The wait is exactly until there is something left; the debt is at most one burst."""
    budgets, clock = new_budgets()
    budgets.charge("hog", 12)
    budgets.note("other")
    assert (budgets.left("hog"), budgets.wait_s("hog")) == (-2, 4)
    clock.now_s += 5
    assert (budgets.left("hog"), budgets.wait_s("hog")) == (0.5, 0)
    budgets.charge("hog", 10_000)
    assert budgets.wait_s("hog") == 20
    clock.now_s += 1000
    assert budgets.left("hog") == 10


def test_an_owner_that_is_idle_is_forgotten() -> None:
    """Memory does not grow with the owners that were ever served."""
    budgets, clock = new_budgets()
    for number in range(1000):
        budgets.charge(str(number), 1)
        clock.now_s += 1
    assert len(budgets) <= RECENT_S + 2
