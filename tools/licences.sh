#!/usr/bin/env bash
# Prints module, version and licence of everything that is linked into or
# tested with Fealty, from the licence files in the module cache, and fails on
# one that is not known to be permissive: Fealty is handed out as one static
# binary, so that even weak copyleft would put a duty on everyone who passes it on.
#
# Where a module holds several licence files, each is classified and each must be
# on the list. A file that a person read and found harmless is in the function
# accepted, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."

accepted() { # MODULE FILE: prints an id for a file that the words below do not fit
  case "$1 $2" in
    # Only in test binaries, which nobody is given.
    "pgregory.net/rapid LICENSE") echo MPL-2.0 ;;
    # SQLite itself: a dedication to the public domain.
    "modernc.org/sqlite LICENSE-SQLITE") echo Public-Domain ;;
    # An account of all that it contains: the above, MIT, BSD, Apache-2.0, and
    # MPL-2.0 in its own module graph but in no build.
    "modernc.org/sqlite LICENSE-3RD-PARTY.md") ;;
    # The address of a picture in its repository, which is in no build.
    "modernc.org/memory LICENSE-LOGO") ;;
    *) return 1 ;;
  esac
}

classify() { # FILE: prints a licence's SPDX id, or fails
  local text
  text=$(tr -s '[:space:]' ' ' <"$1")
  case "$text" in
    *"Mozilla Public License"* | *"GNU GENERAL PUBLIC"* | *"GNU LESSER GENERAL"* | *"GNU AFFERO"* | *"Business Source License"*) return 1 ;;
    *"Apache License"*"Version 2.0"* | *"Apache License 2.0"*) echo Apache-2.0 ;;
    *"Permission is hereby granted, free of charge"*) echo MIT ;;
    *"Redistribution and use in source and binary forms"*"Neither the name"* | *"Redistribution and use in source and binary forms"*"names of its contributors may not"*) echo BSD-3-Clause ;;
    *"Redistribution and use in source and binary forms"*) echo BSD-2-Clause ;;
    *"Permission to use, copy, modify, and/or distribute this software for any purpose"* | *"Permission to use, copy, modify, and distribute this software for any purpose"*) echo ISC ;;
    *) return 1 ;;
  esac
}

modules=$(go list -deps -test -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./... &&
  # The program of the embedded store is a module of its own. What it takes of this one is listed above.
  go list -C cmd/fealty-store -deps -f '{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' .)
modules=$(sort -u <<<"$modules")
failed=0
while read -r path version dir; do
  [ -n "$path" ] || continue
  ids=
  for file in "$dir"/LICENSE* "$dir"/LICENCE* "$dir"/COPYING* "$dir"/license*; do
    [ -f "$file" ] || continue
    if ! id=$(accepted "$path" "${file##*/}") && ! id=$(classify "$file"); then
      echo "licences: ${file#"$dir"/} of $path $version is not on the list of permissive licences: read it, and replace the module or extend tools/licences.sh with a reason" >&2
      failed=1
      id=UNKNOWN
    fi
    [ -n "$id" ] || continue
    case " $ids " in *" $id "*) ;; *) ids="${ids:+$ids }$id" ;; esac
  done
  if [ -z "$ids" ]; then
    echo "licences: $path $version has no licence file" >&2
    failed=1
  fi
  printf '%s\t%s\t%s\n' "$path" "$version" "${ids:-none}"
done <<<"$modules"
exit $failed
