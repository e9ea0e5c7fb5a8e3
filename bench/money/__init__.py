"""A benchmark of the money: what gateways with budgets charge while their processes and networks fail."""
