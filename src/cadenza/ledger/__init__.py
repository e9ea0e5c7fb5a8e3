"""All of the money: pure rules, the writer with its group commit, marks and sweeps, the audit, statements."""
