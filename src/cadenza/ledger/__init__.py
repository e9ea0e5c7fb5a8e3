"""All of the money. A request holds credit, is served, and is charged once.

`gateway/billing.py` sizes the hold of a chat and settles it. The rest is here, in the order in which it is best read:
`rules`, `charging` and `caps` are pure; `reserves` holds credit in memory; `writer` is what a process calls; `backlog`
and `committer` are its group commit; `transaction`, with `rows` and `cap_rows`, is what one commit does; `marks` and
`sweeps` are for crashes; `credit`, `payments` and `refunds` move credit outside of requests, for one of the
`origins`; `statement` is for owners; `months` closes them; `check` checks that everything adds
up, and `export` reads all of it.

The records that the money of one request passes through:

| record                    | made by                      | read by                      | lives until              |
|---------------------------|------------------------------|------------------------------|--------------------------|
| Affordable                | grounding                    | grounding                    | material is gathered     |
| Hold                      | billing.size_hold, grounding | rules, writer, marks, rows   | the end is durable       |
| HeldCredit                | rules.take_hold, reserves    | billing, writer              | the request ends         |
| Insufficient              | rules.take_hold              | billing: status 402          | the request is refused   |
| Repeated                  | transaction, rules.take_hold | billing: status 409          | the request is refused   |
| ReservedElsewhere         | rules.take_hold              | writer: asks other processes | the hold is tried again  |
| Credit                    | gateway/chat                 | gateway/chat                 | the request ends         |
| ReplyResult               | gateway/relay                | Credit.settle                | the outcome is made      |
| Outcome                   | gateway, rules.broken_off    | ledger, metrics, log         | it is logged             |
| End                       | writer, committer, sweeps    | charging, rows               | it is durable            |
| Move                      | committer                    | backlog, committer           | its caller is answered   |
| AccountMoves              | committer, sweeps            | transaction.apply_moves      | the transaction ends     |
| Demand, CapUse            | reserves                     | rules, charging              | the transaction ends     |
| LockedAccount, BatchFacts | transaction                  | rules, charging              | the transaction ends     |
| CapState                  | cap_rows                     | rules, charging              | the transaction ends     |
| Charge, Changes           | charging, rules.take_hold    | rows, transaction            | the transaction ends     |
| Applied                   | transaction.apply_moves      | committer, sweeps            | the callers are answered |
| Ended                     | charging.end_requests        | committer, Credit.settle     | the last byte is sent    |
"""
