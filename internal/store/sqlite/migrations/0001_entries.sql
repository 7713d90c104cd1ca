-- One row for each number that the engine keeps about itself:
--   revision   newest commit
--   compacted  highest revision whose changes may be gone
create table meta (
	name  text primary key,
	value integer not null
) strict, without rowid;
insert into meta values ('revision', 0), ('compacted', 0);

-- The map itself. version is the revision that wrote the value.
create table entries (
	key     text primary key,
	version integer not null,
	value   blob not null
) strict, without rowid;

-- What each commit did, for as long as it is kept. seq is the commit's revision
-- times 1024 plus the place of the write in it. A null value is a deletion.
create table changes (
	seq   integer primary key,
	key   text not null,
	value blob
) strict;

-- Outcomes of transactions that carried an ID. A null digest is an ID that was
-- voided: its outcome was asked before it arrived.
create table outcomes (
	revision integer primary key,
	id       text not null unique,
	digest   blob
) strict;
