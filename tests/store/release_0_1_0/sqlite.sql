CREATE TABLE schema_version (
    revision TEXT NOT NULL, oldest_program TEXT NOT NULL,
    CONSTRAINT pk_schema_version PRIMARY KEY (revision)
);

CREATE TABLE accounts (
    id TEXT NOT NULL, email TEXT NOT NULL, password_hash TEXT NOT NULL, preferred_class TEXT DEFAULT 'forte' NOT NULL,
    balance_nano BIGINT DEFAULT 0 NOT NULL, held_nano BIGINT DEFAULT 0 NOT NULL, created_at BIGINT NOT NULL,
    is_operator BOOLEAN DEFAULT 0 NOT NULL, suspended_at BIGINT, verified_at BIGINT,
    theme TEXT DEFAULT 'system' NOT NULL, uses_search BOOLEAN DEFAULT 1 NOT NULL,
    uses_memory BOOLEAN DEFAULT 1 NOT NULL, has_caps BOOLEAN DEFAULT 0 NOT NULL,
    low_balance_nano BIGINT DEFAULT 1000000000 NOT NULL, low_noticed_at BIGINT, note_count INTEGER DEFAULT 0 NOT NULL,
    erased_at BIGINT, debt_nano BIGINT DEFAULT 0 NOT NULL, granted_nano BIGINT DEFAULT 0 NOT NULL,
    shows_cost BOOLEAN DEFAULT 0 NOT NULL, erasing_email TEXT,
    CONSTRAINT pk_accounts PRIMARY KEY (id),
    CONSTRAINT ck_accounts_email_is_lower_case CHECK (email = lower(email)),
    CONSTRAINT ck_accounts_preferred_class_is_known CHECK (preferred_class IN ('mezzo', 'forte', 'fortissimo')),
    CONSTRAINT ck_accounts_held_is_not_negative CHECK (held_nano >= 0),
    CONSTRAINT ck_accounts_balance_covers_held CHECK (balance_nano - held_nano >= 0),
    CONSTRAINT uq_accounts_email UNIQUE (email)
);

CREATE INDEX ix_accounts_erasing ON accounts (id) WHERE erasing_email IS NOT NULL;

CREATE TABLE class_states (
    class_id TEXT NOT NULL, version INTEGER NOT NULL, earlier TEXT DEFAULT '[]' NOT NULL,
    is_rolled_back BOOLEAN DEFAULT 0 NOT NULL, is_adopted BOOLEAN DEFAULT 0 NOT NULL, candidate INTEGER,
    share INTEGER DEFAULT 0 NOT NULL, canary TEXT, revision BIGINT DEFAULT 1 NOT NULL, changed_at BIGINT NOT NULL,
    watched_at BIGINT,
    CONSTRAINT pk_class_states PRIMARY KEY (class_id),
    CONSTRAINT ck_class_states_candidate_has_a_share CHECK ((candidate IS NULL) = (share = 0)),
    CONSTRAINT ck_class_states_share_is_a_part CHECK (share BETWEEN 0 AND 99)
);

CREATE TABLE class_versions (
    class_id TEXT NOT NULL, number INTEGER NOT NULL, digest BLOB NOT NULL, routes TEXT NOT NULL,
    character TEXT NOT NULL, origin TEXT NOT NULL, created_at BIGINT NOT NULL, actor TEXT NOT NULL, verdict_id TEXT,
    CONSTRAINT pk_class_versions PRIMARY KEY (class_id, number),
    CONSTRAINT ck_class_versions_origin_is_known CHECK (origin IN ('config', 'promotion')),
    CONSTRAINT ck_class_versions_number_is_positive CHECK (number > 0)
);

CREATE INDEX ix_class_versions_digest ON class_versions (class_id, digest);

CREATE TABLE closed_months (
    month TEXT NOT NULL, starts_at BIGINT NOT NULL, ends_at BIGINT NOT NULL, sealed_at BIGINT NOT NULL,
    closed_at BIGINT, first_open_id BIGINT, accounts BIGINT, entries BIGINT, requests BIGINT, opening_nano BIGINT,
    opening_granted_nano BIGINT, closing_nano BIGINT, closing_granted_nano BIGINT, sums TEXT, hash BLOB,
    CONSTRAINT pk_closed_months PRIMARY KEY (month),
    CONSTRAINT ck_closed_months_closed_has_a_hash CHECK ((hash IS NULL) = (closed_at IS NULL))
);

CREATE UNIQUE INDEX uq_closed_months_ends_at ON closed_months (ends_at);

CREATE TABLE command_references (
    digest BLOB NOT NULL, action TEXT NOT NULL, arguments_digest BLOB NOT NULL, subject TEXT NOT NULL,
    at BIGINT NOT NULL,
    CONSTRAINT pk_command_references PRIMARY KEY (digest)
);

CREATE TABLE epochs (
    name TEXT NOT NULL, number BIGINT NOT NULL,
    CONSTRAINT pk_epochs PRIMARY KEY (name)
);

CREATE TABLE payment_events (
    id TEXT NOT NULL, kind TEXT NOT NULL, at BIGINT NOT NULL,
    CONSTRAINT pk_payment_events PRIMARY KEY (id)
);

CREATE TABLE route_rests (
    route TEXT NOT NULL, until_at BIGINT NOT NULL, actor TEXT NOT NULL,
    CONSTRAINT pk_route_rests PRIMARY KEY (route)
);

CREATE TABLE price_changes (
    class_id TEXT NOT NULL, from_at BIGINT NOT NULL, input_nano BIGINT NOT NULL, output_nano BIGINT NOT NULL,
    cached_input_nano BIGINT, created_at BIGINT NOT NULL, actor TEXT NOT NULL,
    CONSTRAINT pk_price_changes PRIMARY KEY (class_id, from_at),
    CONSTRAINT ck_price_changes_prices_are_not_negative CHECK (input_nano >= 0 AND output_nano >= 0),
    CONSTRAINT ck_price_changes_starts_in_the_future CHECK (from_at > created_at)
);

CREATE TABLE processes (
    name TEXT NOT NULL, beats BIGINT DEFAULT 0 NOT NULL, seen BIGINT DEFAULT 0 NOT NULL, version TEXT NOT NULL,
    revision TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    CONSTRAINT pk_processes PRIMARY KEY (name)
);

CREATE TABLE request_details (
    id INTEGER NOT NULL, request_id TEXT NOT NULL, completion_id TEXT, account_id TEXT NOT NULL, key_id TEXT NOT NULL,
    endpoint TEXT NOT NULL, class_id TEXT NOT NULL, version INTEGER, provider TEXT NOT NULL, model TEXT NOT NULL,
    status INTEGER NOT NULL, cause TEXT NOT NULL, fault TEXT NOT NULL, is_charged BOOLEAN NOT NULL,
    ended_at BIGINT NOT NULL, duration_ms BIGINT NOT NULL, first_byte_ms BIGINT, held_ms BIGINT, answered_ms BIGINT,
    settle_ms BIGINT, steps TEXT NOT NULL,
    CONSTRAINT pk_request_details PRIMARY KEY (id)
);

CREATE INDEX ix_request_details_account_id ON request_details (account_id);

CREATE INDEX ix_request_details_completion_id ON request_details (completion_id);

CREATE INDEX ix_request_details_ended_at ON request_details (ended_at);

CREATE INDEX ix_request_details_request_id ON request_details (request_id);

CREATE TABLE retention (
    name TEXT NOT NULL, kept_from BIGINT, worked_at BIGINT NOT NULL,
    CONSTRAINT pk_retention PRIMARY KEY (name)
);

CREATE TABLE site_secrets (
    name TEXT NOT NULL, value BLOB NOT NULL,
    CONSTRAINT pk_site_secrets PRIMARY KEY (name)
);

CREATE TABLE upstream_attempts (
    day INTEGER NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, requests BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL,
    CONSTRAINT pk_upstream_attempts PRIMARY KEY (day, provider, model, kind)
);

CREATE TABLE verdicts (
    id TEXT NOT NULL, class_id TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, created_at BIGINT NOT NULL,
    ended_at BIGINT, actor TEXT NOT NULL, incumbent INTEGER NOT NULL, candidate TEXT NOT NULL, candidate_digest BLOB,
    suite TEXT NOT NULL, suite_digest BLOB NOT NULL, runs INTEGER NOT NULL, spent_nano BIGINT DEFAULT 0 NOT NULL,
    result TEXT,
    CONSTRAINT pk_verdicts PRIMARY KEY (id),
    CONSTRAINT ck_verdicts_kind_is_known CHECK (kind IN ('evaluation', 'watch')),
    CONSTRAINT ck_verdicts_state_is_known CHECK (state IN ('running', 'finished', 'stopped'))
);

CREATE INDEX ix_verdicts_class_id ON verdicts (class_id, created_at);

CREATE TABLE access_tokens (
    id TEXT NOT NULL, account_id TEXT NOT NULL, name TEXT NOT NULL, prefix TEXT NOT NULL, digest BLOB NOT NULL,
    scopes TEXT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, revoked_at BIGINT,
    last_used_at BIGINT,
    CONSTRAINT pk_access_tokens PRIMARY KEY (id),
    CONSTRAINT ck_access_tokens_digest_has_32_bytes CHECK (length(digest) = 32),
    CONSTRAINT ck_access_tokens_scopes_are_named CHECK (length(scopes) > 0),
    CONSTRAINT ck_access_tokens_expires_after_creation CHECK (expires_at > created_at),
    CONSTRAINT fk_access_tokens_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_access_tokens_account_id ON access_tokens (account_id);

CREATE UNIQUE INDEX uq_access_tokens_digest ON access_tokens (digest);

CREATE TABLE audit_events (
    id INTEGER NOT NULL, at BIGINT NOT NULL, actor TEXT NOT NULL, event TEXT NOT NULL, account_id TEXT,
    subject TEXT NOT NULL, detail TEXT NOT NULL, token TEXT,
    CONSTRAINT pk_audit_events PRIMARY KEY (id),
    CONSTRAINT fk_audit_events_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_audit_events_account_id ON audit_events (account_id, id);

CREATE INDEX ix_audit_events_service ON audit_events (subject, id) WHERE account_id IS NULL;

CREATE TABLE closed_balances (
    month TEXT NOT NULL, account_id TEXT NOT NULL, balance_nano BIGINT NOT NULL, granted_nano BIGINT NOT NULL,
    CONSTRAINT pk_closed_balances PRIMARY KEY (month, account_id),
    CONSTRAINT fk_closed_balances_month FOREIGN KEY(month) REFERENCES closed_months (month),
    CONSTRAINT fk_closed_balances_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE TABLE credit_lots (
    id INTEGER NOT NULL, account_id TEXT NOT NULL, note TEXT NOT NULL, amount_nano BIGINT NOT NULL,
    left_nano BIGINT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT, ended_at BIGINT,
    CONSTRAINT pk_credit_lots PRIMARY KEY (id),
    CONSTRAINT ck_credit_lots_left_is_part_of_amount CHECK (left_nano BETWEEN 0 AND amount_nano),
    CONSTRAINT fk_credit_lots_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_credit_lots_account_id ON credit_lots (account_id) WHERE ended_at IS NULL;

CREATE INDEX ix_credit_lots_expires_at ON credit_lots (expires_at) WHERE ended_at IS NULL;

CREATE TABLE debts (
    id INTEGER NOT NULL, account_id TEXT NOT NULL, source TEXT NOT NULL, note TEXT NOT NULL,
    amount_nano BIGINT NOT NULL, left_nano BIGINT NOT NULL, created_at BIGINT NOT NULL,
    CONSTRAINT pk_debts PRIMARY KEY (id),
    CONSTRAINT ck_debts_left_is_part_of_amount CHECK (left_nano BETWEEN 0 AND amount_nano),
    CONSTRAINT fk_debts_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_debts_account_id ON debts (account_id, id);

CREATE UNIQUE INDEX uq_debts_source ON debts (source);

CREATE TABLE entries (
    id INTEGER NOT NULL, account_id TEXT NOT NULL, kind TEXT NOT NULL, amount_nano BIGINT NOT NULL, completion_id TEXT,
    note TEXT NOT NULL, created_at BIGINT NOT NULL, source TEXT, debt_id BIGINT, origin TEXT,
    granted_nano BIGINT NOT NULL,
    CONSTRAINT pk_entries PRIMARY KEY (id),
    CONSTRAINT ck_entries_kind_is_known CHECK (kind = 'charge' OR kind = 'grant' OR kind = 'correction'),
    CONSTRAINT ck_entries_grant_is_positive CHECK (kind <> 'grant' OR amount_nano > 0),
    CONSTRAINT ck_entries_charge_is_not_positive CHECK (kind <> 'charge' OR amount_nano <= 0),
    CONSTRAINT ck_entries_charge_has_request CHECK (kind <> 'charge' OR completion_id IS NOT NULL),
    CONSTRAINT ck_entries_others_have_an_origin CHECK (kind = 'charge' OR origin IS NOT NULL),
    CONSTRAINT fk_entries_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_entries_account_id ON entries (account_id, id);

CREATE INDEX ix_entries_correction ON entries (completion_id) WHERE kind = 'correction';

CREATE UNIQUE INDEX uq_entries_charge ON entries (completion_id) WHERE kind = 'charge';

CREATE UNIQUE INDEX uq_entries_source ON entries (source) WHERE source IS NOT NULL;

CREATE TABLE idempotency (
    account_id TEXT NOT NULL, digest BLOB NOT NULL, completion_id TEXT NOT NULL, request_id TEXT NOT NULL,
    created_at BIGINT NOT NULL, process TEXT,
    CONSTRAINT pk_idempotency PRIMARY KEY (account_id, digest),
    CONSTRAINT fk_idempotency_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_idempotency_created_at ON idempotency (created_at);

CREATE INDEX ix_idempotency_process ON idempotency (process);

CREATE TABLE keys (
    id TEXT NOT NULL, account_id TEXT NOT NULL, name TEXT NOT NULL, prefix TEXT NOT NULL, digest BLOB NOT NULL,
    scopes TEXT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT, revoked_at BIGINT, last_used_at BIGINT,
    requests_per_second FLOAT, burst INTEGER, origin TEXT DEFAULT 'owner' NOT NULL,
    is_capped BOOLEAN DEFAULT 0 NOT NULL, token TEXT,
    CONSTRAINT pk_keys PRIMARY KEY (id),
    CONSTRAINT ck_keys_prefix_has_12_characters CHECK (length(prefix) = 12),
    CONSTRAINT ck_keys_digest_has_32_bytes CHECK (length(digest) = 32),
    CONSTRAINT ck_keys_expires_after_creation CHECK (expires_at > created_at),
    CONSTRAINT fk_keys_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_keys_account_id ON keys (account_id);

CREATE UNIQUE INDEX uq_keys_digest ON keys (digest);

CREATE TABLE links (
    digest BLOB NOT NULL, kind TEXT NOT NULL, account_id TEXT, email TEXT NOT NULL, created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    CONSTRAINT pk_links PRIMARY KEY (digest),
    CONSTRAINT ck_links_kind_is_known CHECK (kind IN ('verify', 'reset', 'change_email', 'invite')),
    CONSTRAINT fk_links_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_links_account_id ON links (account_id);

CREATE TABLE notes (
    id TEXT NOT NULL, account_id TEXT NOT NULL, text TEXT NOT NULL, created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    CONSTRAINT pk_notes PRIMARY KEY (id),
    CONSTRAINT ck_notes_text_is_short CHECK (length(text) BETWEEN 1 AND 1000),
    CONSTRAINT fk_notes_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_notes_account_id ON notes (account_id, created_at, id);

CREATE TABLE passkeys (
    id BLOB NOT NULL, account_id TEXT NOT NULL, name TEXT NOT NULL, public_key BLOB NOT NULL,
    sign_count BIGINT NOT NULL, created_at BIGINT NOT NULL, last_used_at BIGINT,
    CONSTRAINT pk_passkeys PRIMARY KEY (id),
    CONSTRAINT fk_passkeys_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_passkeys_account_id ON passkeys (account_id);

CREATE TABLE payments (
    id TEXT NOT NULL, account_id TEXT NOT NULL, provider TEXT NOT NULL, checkout TEXT NOT NULL, reference TEXT,
    amount_nano BIGINT NOT NULL, returned_nano BIGINT DEFAULT 0 NOT NULL, state TEXT NOT NULL,
    created_at BIGINT NOT NULL, changed_at BIGINT NOT NULL, refunded_nano BIGINT DEFAULT 0 NOT NULL,
    lost_nano BIGINT DEFAULT 0 NOT NULL, disputed_nano BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_payments PRIMARY KEY (id),
    CONSTRAINT ck_payments_state_is_known CHECK (state IN ('open', 'paid', 'returned', 'disputed', 'expired')),
    CONSTRAINT ck_payments_amount_is_positive CHECK (amount_nano > 0),
    CONSTRAINT ck_payments_returned_is_part_of_amount CHECK (returned_nano BETWEEN 0 AND amount_nano),
    CONSTRAINT fk_payments_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_payments_account_id ON payments (account_id);

CREATE INDEX ix_payments_created_at ON payments (created_at);

CREATE INDEX ix_payments_reference ON payments (reference);

CREATE UNIQUE INDEX uq_payments_checkout ON payments (checkout);

CREATE TABLE recovery_codes (
    account_id TEXT NOT NULL, digest BLOB NOT NULL,
    CONSTRAINT pk_recovery_codes PRIMARY KEY (account_id, digest),
    CONSTRAINT fk_recovery_codes_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE TABLE reserves (
    account_id TEXT NOT NULL, process TEXT NOT NULL, amount_nano BIGINT NOT NULL, has_spare BOOLEAN NOT NULL,
    is_asked BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_reserves PRIMARY KEY (account_id, process),
    CONSTRAINT ck_reserves_amount_is_not_negative CHECK (amount_nano >= 0),
    CONSTRAINT fk_reserves_account_id FOREIGN KEY(account_id) REFERENCES accounts (id),
    CONSTRAINT fk_reserves_process FOREIGN KEY(process) REFERENCES processes (name)
);

CREATE INDEX ix_reserves_process ON reserves (process);

CREATE INDEX ix_reserves_asked ON reserves (process) WHERE is_asked;

CREATE TABLE sessions (
    digest BLOB NOT NULL, account_id TEXT NOT NULL, stage TEXT NOT NULL, agent TEXT NOT NULL,
    created_at BIGINT NOT NULL, used_at BIGINT NOT NULL, proved_at BIGINT NOT NULL, expires_at BIGINT NOT NULL,
    CONSTRAINT pk_sessions PRIMARY KEY (digest),
    CONSTRAINT ck_sessions_stage_is_known CHECK (stage IN ('second_factor', 'complete')),
    CONSTRAINT fk_sessions_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_sessions_account_id ON sessions (account_id);

CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);

CREATE TABLE totp (
    account_id TEXT NOT NULL, secret BLOB NOT NULL, last_step BIGINT DEFAULT 0 NOT NULL, confirmed_at BIGINT,
    CONSTRAINT pk_totp PRIMARY KEY (account_id),
    CONSTRAINT fk_totp_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE TABLE verdict_scores (
    verdict_id TEXT NOT NULL, case_number INTEGER NOT NULL, run INTEGER NOT NULL, side TEXT NOT NULL,
    score FLOAT NOT NULL, cost_nano BIGINT, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    first_token_ms FLOAT, duration_ms FLOAT, fault TEXT NOT NULL,
    CONSTRAINT pk_verdict_scores PRIMARY KEY (verdict_id, case_number, run, side),
    CONSTRAINT ck_verdict_scores_side_is_known CHECK (side IN ('incumbent', 'candidate')),
    CONSTRAINT ck_verdict_scores_score_is_a_share CHECK (score BETWEEN 0 AND 1),
    CONSTRAINT fk_verdict_scores_verdict_id FOREIGN KEY(verdict_id) REFERENCES verdicts (id)
);

CREATE TABLE vouchers (
    id TEXT NOT NULL, digest BLOB NOT NULL, prefix TEXT NOT NULL, amount_nano BIGINT NOT NULL, note TEXT NOT NULL,
    created_at BIGINT NOT NULL, expires_at BIGINT, redeemed_at BIGINT, redeemed_by TEXT, credit_days INTEGER,
    CONSTRAINT pk_vouchers PRIMARY KEY (id),
    CONSTRAINT ck_vouchers_amount_is_positive CHECK (amount_nano > 0),
    CONSTRAINT ck_vouchers_redeemed_has_an_owner CHECK ((redeemed_at IS NULL) = (redeemed_by IS NULL)),
    CONSTRAINT fk_vouchers_redeemed_by FOREIGN KEY(redeemed_by) REFERENCES accounts (id)
);

CREATE UNIQUE INDEX uq_vouchers_digest ON vouchers (digest);

CREATE TABLE cap_holds (
    key_id TEXT NOT NULL, process TEXT NOT NULL, amount_nano BIGINT NOT NULL,
    CONSTRAINT pk_cap_holds PRIMARY KEY (key_id, process),
    CONSTRAINT ck_cap_holds_amount_is_not_negative CHECK (amount_nano >= 0),
    CONSTRAINT fk_cap_holds_key_id FOREIGN KEY(key_id) REFERENCES keys (id),
    CONSTRAINT fk_cap_holds_process FOREIGN KEY(process) REFERENCES processes (name)
);

CREATE INDEX ix_cap_holds_process ON cap_holds (process);

CREATE TABLE caps (
    key_id TEXT NOT NULL, account_id TEXT NOT NULL, period TEXT NOT NULL, limit_nano BIGINT NOT NULL,
    month INTEGER NOT NULL, spent_nano BIGINT NOT NULL, excused_nano BIGINT NOT NULL,
    CONSTRAINT pk_caps PRIMARY KEY (key_id),
    CONSTRAINT ck_caps_period_is_known CHECK (period IN ('total', 'month')),
    CONSTRAINT ck_caps_money_is_not_negative CHECK (limit_nano >= 0 AND spent_nano >= 0 AND excused_nano >= 0),
    CONSTRAINT ck_caps_spent_is_within_limit CHECK (spent_nano - limit_nano <= excused_nano),
    CONSTRAINT fk_caps_key_id FOREIGN KEY(key_id) REFERENCES keys (id),
    CONSTRAINT fk_caps_account_id FOREIGN KEY(account_id) REFERENCES accounts (id)
);

CREATE INDEX ix_caps_account_id ON caps (account_id);

CREATE TABLE marks (
    completion_id TEXT NOT NULL, request_id TEXT NOT NULL, process TEXT NOT NULL, account_id TEXT NOT NULL,
    key_id TEXT NOT NULL, class_id TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, delivered_tokens INTEGER NOT NULL,
    input_nano BIGINT NOT NULL, output_nano BIGINT NOT NULL, cached_input_nano BIGINT, stream BOOLEAN NOT NULL,
    started_at BIGINT NOT NULL, version INTEGER NOT NULL,
    CONSTRAINT pk_marks PRIMARY KEY (completion_id),
    CONSTRAINT ck_marks_tokens_are_counted CHECK (prompt_tokens >= 0 AND delivered_tokens > 0),
    CONSTRAINT fk_marks_process FOREIGN KEY(process) REFERENCES processes (name),
    CONSTRAINT fk_marks_account_id FOREIGN KEY(account_id) REFERENCES accounts (id),
    CONSTRAINT fk_marks_key_id FOREIGN KEY(key_id) REFERENCES keys (id)
);

CREATE TABLE usage (
    completion_id TEXT NOT NULL, account_id TEXT NOT NULL, key_id TEXT NOT NULL, class_id TEXT NOT NULL,
    provider TEXT NOT NULL, model TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cost_nano BIGINT NOT NULL, estimated BOOLEAN NOT NULL,
    status INTEGER NOT NULL, stream BOOLEAN NOT NULL, started_at BIGINT NOT NULL, first_byte_ms BIGINT,
    duration_ms BIGINT NOT NULL, request_id TEXT NOT NULL, input_nano BIGINT NOT NULL, output_nano BIGINT NOT NULL,
    cached_input_nano BIGINT, held_nano BIGINT, short_nano BIGINT NOT NULL, source TEXT NOT NULL,
    idempotency_digest BLOB, version INTEGER, provider_cost_nano BIGINT,
    CONSTRAINT pk_usage PRIMARY KEY (completion_id),
    CONSTRAINT ck_usage_cached_is_part_of_prompt CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
    CONSTRAINT ck_usage_completion_is_not_negative CHECK (completion_tokens >= 0),
    CONSTRAINT ck_usage_cost_is_not_negative CHECK (cost_nano >= 0),
    CONSTRAINT fk_usage_account_id FOREIGN KEY(account_id) REFERENCES accounts (id),
    CONSTRAINT fk_usage_key_id FOREIGN KEY(key_id) REFERENCES keys (id)
);

CREATE INDEX ix_usage_account_id ON usage (account_id, started_at);

CREATE TABLE usage_days (
    account_id TEXT NOT NULL, day BIGINT NOT NULL, key_id TEXT NOT NULL, class_id TEXT NOT NULL,
    provider TEXT NOT NULL, model TEXT NOT NULL, requests BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL, cost_nano BIGINT NOT NULL,
    provider_cost_nano BIGINT NOT NULL, failed_requests BIGINT NOT NULL, counted_requests BIGINT NOT NULL,
    broken_requests BIGINT NOT NULL, estimated_requests BIGINT NOT NULL, uncosted_requests BIGINT NOT NULL,
    uncosted_nano BIGINT NOT NULL,
    CONSTRAINT pk_usage_days PRIMARY KEY (account_id, day, key_id, class_id, provider, model),
    CONSTRAINT ck_usage_days_sums_are_not_negative CHECK (requests >= 0 AND cost_nano >= 0),
    CONSTRAINT fk_usage_days_account_id FOREIGN KEY(account_id) REFERENCES accounts (id),
    CONSTRAINT fk_usage_days_key_id FOREIGN KEY(key_id) REFERENCES keys (id)
);

CREATE INDEX ix_usage_days_day ON usage_days (day);

CREATE INDEX ix_usage_days_key_id ON usage_days (key_id, day);

CREATE TRIGGER entries_refuse_update BEFORE UPDATE ON entries WHEN TRUE BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;

CREATE TRIGGER entries_refuse_delete BEFORE DELETE ON entries WHEN TRUE BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;

CREATE TRIGGER audit_events_refuse_update BEFORE UPDATE ON audit_events WHEN NOT EXISTS (
    SELECT 1 FROM accounts
    WHERE erased_at IS NOT NULL AND (id = OLD.account_id OR OLD.actor IN (email, erasing_email))
    AND NEW.actor IN (OLD.actor, id) AND (NEW.detail = OLD.detail OR (NEW.detail = '' AND id = OLD.account_id))
    AND NEW.id = OLD.id AND NEW.at = OLD.at AND NEW.event = OLD.event AND NEW.subject = OLD.subject
    AND (NEW.account_id = OLD.account_id OR (NEW.account_id IS NULL AND OLD.account_id IS NULL))) BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

CREATE TRIGGER audit_events_refuse_delete BEFORE DELETE ON audit_events WHEN NOT (OLD.account_id IS NOT NULL AND OLD.at < COALESCE(
    (SELECT kept_from FROM retention WHERE name = 'audit_events'), 0)) BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

CREATE TRIGGER class_versions_refuse_update BEFORE UPDATE ON class_versions WHEN TRUE BEGIN SELECT RAISE(ABORT, 'versions of classes are append-only'); END;

CREATE TRIGGER class_versions_refuse_delete BEFORE DELETE ON class_versions WHEN TRUE BEGIN SELECT RAISE(ABORT, 'versions of classes are append-only'); END;

CREATE TRIGGER closed_months_refuse_update BEFORE UPDATE ON closed_months WHEN OLD.hash IS NOT NULL BEGIN SELECT RAISE(ABORT, 'a closed month does not change'); END;

CREATE TRIGGER closed_months_refuse_delete BEFORE DELETE ON closed_months WHEN OLD.hash IS NOT NULL BEGIN SELECT RAISE(ABORT, 'a closed month does not change'); END;

CREATE TRIGGER closed_balances_refuse_update BEFORE UPDATE ON closed_balances WHEN TRUE BEGIN SELECT RAISE(ABORT, 'a closed month does not change'); END;

CREATE TRIGGER closed_balances_refuse_delete BEFORE DELETE ON closed_balances WHEN TRUE BEGIN SELECT RAISE(ABORT, 'a closed month does not change'); END;

INSERT INTO epochs (name, number) VALUES ('classes', 0), ('changes', 0);

INSERT INTO schema_version (revision, oldest_program) VALUES ('0001', '0001');
