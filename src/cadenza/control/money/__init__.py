"""Credit as people see it: grants, vouchers, payments, statements. The entries are written by `ledger`."""
