"""Tables of credit that moves outside of requests: debts, and the references of idempotent commands.

The other tables are in schema.py, and share this metadata.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

debts = Table(  # credit that was to be taken back and was held or spent: later credit and ended holds pay it first
    "debts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("source", Text, nullable=False),  # the refund, dispute or correction, which leaves one debt
    Column("note", Text, nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("left_nano", BigInteger, nullable=False),  # what is not paid yet
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="left_is_part_of_amount"),
    Index("ix_debts_account_id", "account_id", "id"),
    Index("uq_debts_source", "source", unique=True),
)

command_references = Table(  # idempotent commands that were carried out
    "command_references",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),  # of the reference and its user
    Column("action", Text, nullable=False),  # like credit.grant
    Column("arguments_digest", LargeBinary(32), nullable=False),  # a repetition has the same arguments
    Column("subject", Text, nullable=False),  # the id of what it created
    Column("at", BigInteger, nullable=False),
)
