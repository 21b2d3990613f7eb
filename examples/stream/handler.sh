#!/bin/sh
# Appends messages to a journal. "id" is the first member of every line, so it can be found without a JSON parser.
# If the journal must survive a power cut, sync it before the reply.
while IFS= read -r line; do
    id=${line#*'"id":"'}
    id=${id%%'"'*}
    if printf '%s\n' "$line" >>"${JOURNAL:-journal.ndjson}"; then
        printf '{"id":"%s","outcome":"done"}\n' "$id"
    else
        printf '{"id":"%s","outcome":"retry","reason":"cannot write the journal","delay_ms":5000}\n' "$id"
    fi
done
