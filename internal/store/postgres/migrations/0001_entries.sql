-- One row: what orders the commits. Whoever commits locks it first, so that at
-- most one transaction writes at a time and revisions become visible in order.
--   revision   newest commit
--   compacted  highest revision whose changes may be gone
--   logged     bytes of keys and values ever written to the log
-- It is updated by every commit; the free space keeps those updates in place.
create table fealty_revision (
	only_row  boolean primary key default true check (only_row),
	revision  bigint not null,
	compacted bigint not null,
	logged    bigint not null
) with (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
insert into fealty_revision (revision, compacted, logged) values (0, 0, 0);

-- The map itself. version is the revision that wrote the value.
create table fealty_kv (
	key     text collate "C" primary key,
	version bigint not null,
	value   bytea not null
) with (fillfactor = 90);

-- What each commit did, for as long as it is kept. seq is the commit's revision
-- times 1024 plus the place of the write in it. A null value is a deletion.
create table fealty_log (
	seq   bigint primary key,
	key   text collate "C" not null,
	value bytea
);

-- Outcomes of transactions that carried an ID. A null digest is an ID that was
-- voided: its outcome was asked before it arrived.
create table fealty_outcome (
	revision bigint primary key,
	id       text collate "C" not null unique,
	digest   bytea
);

-- For people. Everything below reads only, and nothing in Fealty reads it.

-- The text that the bytes are in UTF-8, or null.
create function fealty_text(bytes bytea) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
	return convert_from(bytes, 'UTF8');
exception when others then
	return null;
end $$;

-- The JSON that the text is, or null.
create function fealty_json(json text) returns jsonb
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
	return json::jsonb;
exception when others then
	return null;
end $$;

-- The time that the text is, or null.
create function fealty_time(t text) returns timestamptz
language plpgsql stable strict parallel safe set search_path = pg_catalog as $$
begin
	return t::timestamptz;
exception when others then
	return null;
end $$;

-- Every key. A record under the cluster's authentication code is one byte 0x01,
-- 32 bytes of code and the record; value is the record then, and sealed is true.
-- SQL cannot check the code: what is shown may have been altered by whoever can
-- write to this database, and Fealty would refuse it.
-- value is null where it is not text, such as in what is encrypted.
create view fealty_entries as
select key,
	case when sealed then fealty_text(substr(value, 34)) else fealty_text(value) end as value,
	version,
	sealed,
	octet_length(value) as bytes
from (
	select key, version, value,
		octet_length(value) > 33 and get_byte(value, 0) = 1
			and fealty_text(value) is null and fealty_text(substr(value, 34)) is not null as sealed
	from fealty_kv
) e;

-- The members of the cluster; record has all fields. Not authenticated, as above.
create view fealty_members as
select record ->> 'kind' as kind,
	record ->> 'name' as name,
	record ->> 'state' as state,
	record ->> 'entry' as entry,
	record -> 'roles' as roles,
	record -> 'organizations' as organizations,
	record -> 'domains' as domains,
	fealty_time(record ->> 'joined_at') as joined_at,
	fealty_time(record ->> 'not_after') as not_after,
	record ->> 'proof_type' as proof_type,
	record ->> 'key' as certified_key,
	record,
	key,
	version
from (
	select key, version, fealty_json(fealty_text(substr(value, 34))) as record
	from fealty_kv
	where key >= 'member/' and key < 'member0'
) m;
