CREATE TABLE penstock_outbox (
	id BIGSERIAL NOT NULL,
	topic TEXT NOT NULL,
	message_id TEXT NOT NULL,
	ordering_key TEXT,
	subject TEXT,
	data BYTEA NOT NULL,
	attributes JSON NOT NULL,
	ttl DOUBLE PRECISION,
	created_at DOUBLE PRECISION NOT NULL,
	state TEXT NOT NULL,
	attempts INTEGER NOT NULL,
	next_attempt_at DOUBLE PRECISION NOT NULL,
	claimed_by TEXT,
	fence BIGINT NOT NULL,
	lease_until DOUBLE PRECISION NOT NULL,
	last_error TEXT,
	published_at DOUBLE PRECISION,
	sequence BIGINT,
	PRIMARY KEY (id),
	CONSTRAINT penstock_outbox_message UNIQUE (topic, message_id)
);

CREATE INDEX penstock_outbox_published ON penstock_outbox (published_at) WHERE state = 'published';

CREATE INDEX penstock_outbox_delayed ON penstock_outbox (next_attempt_at) WHERE state = 'pending' AND ordering_key IS NOT NULL AND next_attempt_at > 0;

CREATE INDEX penstock_outbox_claims ON penstock_outbox (claimed_by, fence) WHERE state = 'pending';

CREATE INDEX penstock_outbox_keyed ON penstock_outbox (id) WHERE state = 'pending' AND ordering_key IS NOT NULL;

CREATE INDEX penstock_outbox_keyless ON penstock_outbox (id) WHERE state = 'pending' AND ordering_key IS NULL;

CREATE INDEX penstock_outbox_dead ON penstock_outbox (id) WHERE state = 'dead';

CREATE INDEX penstock_outbox_claimed ON penstock_outbox (lease_until) WHERE state = 'pending' AND ordering_key IS NOT NULL AND lease_until > 0;

CREATE TABLE penstock_jobs (
	job_id VARCHAR(36) NOT NULL,
	user_id VARCHAR(64) NOT NULL,
	media_type VARCHAR(16) NOT NULL,
	media_id VARCHAR(36) NOT NULL,
	source TEXT NOT NULL,
	video_id VARCHAR(11),
	stage VARCHAR(24) NOT NULL,
	previous VARCHAR(24),
	run INTEGER NOT NULL,
	version INTEGER NOT NULL,
	info BYTEA,
	title TEXT,
	reason VARCHAR(48),
	attempts INTEGER NOT NULL,
	language VARCHAR(48),
	segments INTEGER NOT NULL,
	characters INTEGER NOT NULL,
	correlation_id VARCHAR(64),
	traceparent VARCHAR(55),
	request VARCHAR(64),
	retry_us BIGINT,
	trying BOOLEAN NOT NULL,
	ready_us BIGINT,
	created_us BIGINT NOT NULL,
	updated_us BIGINT NOT NULL,
	PRIMARY KEY (job_id)
);

CREATE INDEX penstock_jobs_to_retry ON penstock_jobs (retry_us);

CREATE TABLE penstock_texts (
	job_id VARCHAR(36) NOT NULL,
	run INTEGER NOT NULL,
	text BYTEA NOT NULL,
	PRIMARY KEY (job_id)
);

CREATE TABLE penstock_job_views (
	job_id VARCHAR(36) NOT NULL,
	user_id VARCHAR(64) NOT NULL,
	stage VARCHAR(24) NOT NULL,
	media_type VARCHAR(16) NOT NULL,
	queued_us BIGINT NOT NULL,
	view BYTEA NOT NULL,
	PRIMARY KEY (job_id)
);

CREATE INDEX penstock_job_views_by_time ON penstock_job_views (queued_us, job_id);

CREATE INDEX penstock_job_views_by_user ON penstock_job_views (user_id, queued_us, job_id);

CREATE TABLE penstock_job_views_position (
	topic VARCHAR(255) NOT NULL,
	sequence BIGINT NOT NULL,
	PRIMARY KEY (topic)
);
