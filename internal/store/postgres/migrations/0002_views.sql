-- More for people, with the same warning: SQL checks neither codes nor signatures.
-- What counts is proven by fealty manifest verify-history.

-- The number that the text is, or null.
create function fealty_number(t text) returns bigint
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
	return t::bigint;
exception when others then
	return null;
end $$;

-- The history, from the head back to genesis; record has all fields. A union that
-- drops what it has seen, so that a forged circle ends too.
create view fealty_history as
with recursive chain (transition, record) as (
		select h.hash, fealty_json(fealty_text(b.value))
		from (select fealty_json(fealty_text(value)) ->> 'hash' as hash from fealty_kv where key = 'history/latest') h
		join fealty_kv b on b.key = 'history/blob/' || h.hash
	union
		select c.record ->> 'previous', fealty_json(fealty_text(b.value))
		from chain c
		join fealty_kv b on b.key = 'history/blob/' || (c.record ->> 'previous')
)
select fealty_number(record ->> 'index') as index,
	record ->> 'kind' as kind,
	fealty_number(record ->> 'authority_epoch') as authority_epoch,
	record ->> 'reason' as reason,
	transition,
	record ->> 'manifest' as manifest,
	record
from chain;

-- The manifest in force, as its writers wrote it.
create view fealty_manifest as
select h.index, h.authority_epoch, h.transition, h.manifest as hash, fealty_text(b.value) as manifest
from fealty_history h
join fealty_kv b on b.key = 'history/blob/' || h.manifest
where h.transition = (select fealty_json(fealty_text(value)) ->> 'hash' from fealty_kv where key = 'history/latest');

-- Who did what, for as long as it is kept.
create view fealty_audit as
select fealty_time(record ->> 'at') as at,
	record ->> 'actor' as actor,
	record ->> 'action' as action,
	record ->> 'target' as target,
	record ->> 'reason' as reason,
	record -> 'fields' as fields,
	key
from (
	select key, fealty_json(fealty_text(value)) as record
	from fealty_kv
	where key >= 'audit/' and key < 'audit0'
) a;
