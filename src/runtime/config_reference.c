/* Prints docs/configuration.md and `once help config` from the tables. */
#include "effect/effect.h"
#include "runtime/config.h"
#include "runtime/config_internal.h"
#include "runtime/config_preset.h"

#include "base/banned.h"

static const char introduction[] =
    "<!-- Printed by once_config_reference() from the tables in src/runtime/config_table_*.c. Change those, not this "
    "file. -->\n"
    "\n"
    "# Configuration\n"
    "\n"
    "A pipeline is one YAML file. It is read and checked completely before anything runs; every mistake is reported "
    "as\n"
    "`file:line: what; what to do`, up to ten at a time. Paths in it are relative to the current directory of the "
    "command,\n"
    "not to the file.\n"
    "\n"
    "A plain subset of YAML is accepted: maps, lists, texts. Anchors, aliases, tags and several documents are refused, "
    "and so\n"
    "are unknown and repeated fields, files larger than 1 MiB and anything that is not UTF-8. A feature that this "
    "build does not\n"
    "contain is refused by its name.\n"
    "\n"
    "## Values\n"
    "\n"
    "| value | how it is written |\n"
    "|---|---|\n"
    "| duration | a whole number and a unit: `200ms`, `30s`, `5m`, `1h`, `7d`. A number without a unit is refused |\n"
    "| two durations | the shortest and the longest: `200ms..1m` |\n"
    "| size | a whole number and a unit: `512B`, `64KiB`, `1MiB`, `1GiB`; also `KB`, `MB`, `GB` in powers of 1000 |\n"
    "| JSON pointer | `/order/id`, as in RFC 6901: `~1` is a `/` and `~0` a `~` inside a name; beyond the RFC, `~2` is "
    "a `:` and `~3` a `}` |\n"
    "| template | text with placeholders, see below; put it in quotes |\n"
    "\n"
    "## Templates\n"
    "\n"
    "| placeholder | becomes |\n"
    "|---|---|\n"
    "| `${/a/b}` | the field of the body at this JSON pointer: a string as it is, a number in one canonical spelling, "
    "true or false |\n"
    "| `${json:/Message:/detail/id}` | a field of JSON that is a text: the text at `/Message` is read as JSON, and "
    "`/detail/id` is taken from it. With more of `:/...` it goes through up to 8 texts. A `:` before a `/` that "
    "belongs "
    "to a name is written `~2` |\n"
    "| `${header:NAME}` | a header of the message |\n"
    "| `${source:NAME}` | a value that the source attaches to the message; each source lists its names (`file`: none) "
    "|\n"
    "| `${event:NAME}` | an attribute of an event, with a [preset](#presets): `cloudevents` has those of the body, or "
    "of a header `ce_NAME` or `ce-NAME`; `sns` has `id`, `source`, `time` and `subject`; `eventbridge` has `id`, "
    "`source`, `type`, `time`, `account` and `region` |\n"
    "| `${coordinates}` | where the source had the message: the same on every redelivery |\n"
    "| `${hash}` | a hash of the whole body; of JSON, white space and the order of members do not matter; with `body: "
    "bytes` every byte counts |\n"
    "| `${time:/ts:5m}` | the time at `/ts`, rounded down to a multiple of 5 minutes |\n"
    "| `$${` | a literal `${` |\n"
    "\n"
    "Everything else is literal. A message in which the field is missing, null, an object or an array becomes a dead "
    "letter, and so does one with a text that is not JSON where `json:` expects it. A\n"
    "template of one placeholder gives the value as it is. In every other template values are escaped, so that they "
    "cannot be\n"
    "confused with each other: in a value, `%` and each byte that occurs in the template's literals is written `%XX`, "
    "a literal `%`\n"
    "is written `%%`, and a `,` is put between adjacent placeholders. So `a:${/x}:${/y}` never gives one key for two "
    "different pairs.\n"
    "Values are compared as text: the number 1 and the string \"1\" make the same key.\n";

static const char about_presets[] =
    "\n"
    "## Presets\n"
    "\n"
    "A preset is a set of defaults. What the file says itself counts instead, field by field.\n"
    "\n"
    "| preset | messages | sets |\n"
    "|---|---|---|\n";

static const char about_events[] =
    "\n"
    "With `cloudevents` every message must be an event: one that is neither structured nor binary, or lacks\n"
    "`specversion`, `id`, `source` or `type`, becomes a dead letter. A header `content-type` that begins with\n"
    "`application/cloudevents` says structured; otherwise a header with the specversion says binary, and a body with\n"
    "one says structured. `source` and `id` together are the key, because a producer numbers only its own events; the\n"
    "type chooses the handler. Other attributes are `${event:subject}` and so on. The effect gets the body as it "
    "came:\n"
    "a field of the data is `:{/data/order}` in a structured event, and `:order` in a binary one. With `body: bytes`\n"
    "events must be binary, and their data may be anything.\n"
    "\n"
    "With `sns` a message may come in the envelope of SNS or without one (raw delivery); each message is looked at. "
    "An\n"
    "envelope is opened: the body is then the text in its `Message`, and its `MessageAttributes` are headers. So\n"
    "templates and effects see what raw delivery sends, and one file works with both. The topic and the MessageId\n"
    "of an envelope are `${event:source}` and `${event:id}`; a raw message has neither, and its coordinates are used\n"
    "instead. There is no default for `type`: use `${/field}` or `${header:NAME}`. Confirmations of a subscription\n"
    "become dead letters that say what to do. Signatures are not verified: the access policy of the queue decides who\n"
    "can send. Dead letters and waiting messages are kept without the envelope.\n"
    "\n"
    "With `eventbridge` every message must be a whole event, with `id`, `source`, `detail-type` and `detail`; "
    "anything\n"
    "else becomes a dead letter. The body stays as it is: a field of the data is `:{/detail/order}`. The fingerprint\n"
    "leaves out what may differ when an event is sent again, such as `replay-name`. An event that comes through SNS "
    "is\n"
    "the body of `preset: sns`: there `key: \"${/source}#${/id}\"`, `type: \"${/detail-type}\"` are the same.\n"
    "[idempotency-keys.md](idempotency-keys.md#envelopes-of-sns-and-eventbridge) says which duplicates are caught.\n";

static void put_presets(once_buf *out)
{
    size_t n;
    const once_preset *presets = once__preset_list(&n);
    once_buf_puts(out, about_presets);
    for (size_t i = 0; i < n; i++) {
        once_bytes line, name;
        once_buf_printf(out, "| `%s` | %s | ", presets[i].name, presets[i].text);
        for (size_t k = 0; once__preset_line(&presets[i], k, &line, &name); k++)
            once_buf_printf(out, "%s`%.*s`", k ? ", " : "", (int)line.len, line.data);
        once_buf_puts(out, " |\n");
    }
    once_buf_puts(out, about_events);
}

bool once_config_reference(once_buf *out)
{
    once_buf_puts(out, introduction);
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    once_config_section_reference(&once__pipeline_section, 2, out);
    put_presets(out);
    for (size_t i = 0; i < n; i++)
        if (effects[i]->section) once_buf_puts(out, effects[i]->section);
    return !out->failed;
}

bool once_config_help(once_buf *out) { return once_config_section_help(&once__pipeline_section, out); }
