"""The tables of classes: what stands behind them, their evaluations and their prices. schema.py has the others."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Text,
    false,
    text,
)

from cadenza.store.columns import LeftOut, OfService, required, table

class_versions = table(
    "class_versions",  # what stands behind a class: append-only, numbered from 1 in each class
    LeftOut("what an operator did to a class, for the service", kept="kept, with the operator's address"),
    Column("class_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary(32), nullable=False),  # of routes and character
    Column("routes", Text, nullable=False),  # JSON: core/classes.py
    Column("character", Text, nullable=False),
    Column("origin", Text, nullable=False),  # who made it: a config file or a promotion
    Column("created_at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("verdict_id", Text),  # the verdict that let it be promoted
    CheckConstraint("origin IN ('config', 'promotion')", name="origin_is_known"),
    CheckConstraint("number > 0", name="number_is_positive"),
    Index("ix_class_versions_digest", "class_id", "digest"),
)

class_states = table(
    "class_states",
    OfService("which version of a class is served", kept="kept"),
    Column("class_id", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("earlier", Text, nullable=False, server_default="[]"),  # JSON: the versions served before it, newest first
    Column("is_rolled_back", Boolean, nullable=False, server_default=false()),  # a rollback served this version
    Column("is_adopted", Boolean, nullable=False, server_default=false()),  # the store decides, not the config
    Column("candidate", Integer),  # this, share and canary: used by release 0.1.0 alone
    Column("share", Integer, nullable=False, server_default=text("0")),
    Column("canary", Text),
    Column("revision", BigInteger, nullable=False, server_default=text("1")),  # grows with every change
    Column("changed_at", BigInteger, nullable=False),
    Column("watched_at", BigInteger),  # used by release 0.1.0 alone
    CheckConstraint("(candidate IS NULL) = (share = 0)", name="candidate_has_a_share"),
    CheckConstraint("share BETWEEN 0 AND 99", name="share_is_a_part"),
)

verdicts = table(
    "verdicts",  # evaluations of classes, and watches of release 0.1.0: counts and scores, never content
    LeftOut("evaluations that an operator started, for the service", kept="kept, with the operator's address"),
    Column("id", Text, primary_key=True),
    *required(Text, "class_id", "kind", "state"),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("actor", Text, nullable=False),
    Column("incumbent", Integer, nullable=False),  # the version of the class
    Column("candidate", Text, nullable=False),  # provider/model
    Column("candidate_digest", LargeBinary(32)),  # of the version that it would become
    Column("suite", Text, nullable=False),  # its name
    Column("suite_digest", LargeBinary(32), nullable=False),
    Column("runs", Integer, nullable=False),
    Column("spent_nano", BigInteger, nullable=False, server_default=text("0")),
    Column("result", Text),  # JSON: evaluation/verdict.py; null until it has ended
    CheckConstraint("kind IN ('evaluation', 'watch')", name="kind_is_known"),
    CheckConstraint("state IN ('running', 'finished', 'stopped')", name="state_is_known"),
    Index("ix_verdicts_class_id", "class_id", "created_at"),
)

verdict_scores = table(
    "verdict_scores",  # of one answer of one side: an interrupted evaluation continues from it
    OfService("scores, tokens and times of the answers of an evaluation, without the answers", kept="kept"),
    Column("verdict_id", Text, ForeignKey("verdicts.id"), primary_key=True),
    Column("case_number", Integer, primary_key=True, autoincrement=False),  # its place in the suite
    Column("run", Integer, primary_key=True, autoincrement=False),
    Column("side", Text, primary_key=True),
    Column("score", Float, nullable=False),
    Column("cost_nano", BigInteger),  # null: the costs of the route are not known
    *required(Integer, "prompt_tokens", "completion_tokens"),
    Column("first_token_ms", Float),
    Column("duration_ms", Float),
    Column("fault", Text, nullable=False),  # its kind, or empty
    CheckConstraint("side IN ('incumbent', 'candidate')", name="side_is_known"),
    CheckConstraint("score BETWEEN 0 AND 1", name="score_is_a_share"),
)

route_rests = table(
    "route_rests",
    LeftOut(
        "until when operators keep requests from a route, for the service",
        kept="the next rest after its end, with the operator's address",
    ),
    Column("route", Text, primary_key=True),  # PROVIDER/MODEL
    Column("until_at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
)

price_changes = table(
    "price_changes",  # prices that take effect on a date
    LeftOut("prices that an operator set, for the service", kept="kept, with the operator's address"),
    Column("class_id", Text, primary_key=True),
    Column("from_at", BigInteger, primary_key=True, autoincrement=False),
    *required(BigInteger, "input_nano", "output_nano"),
    Column("cached_input_nano", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    CheckConstraint("input_nano >= 0 AND output_nano >= 0", name="prices_are_not_negative"),
    CheckConstraint("from_at > created_at", name="starts_in_the_future"),
)
