"""The durable state: one protocol over SQLite and Postgres, the schema, the migrations, and the rows of each table."""
