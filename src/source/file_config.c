/* The file source's part of the pipeline file. */
#include "source/file.h"
#include "source/source.h"

#include "base/banned.h"

static const once_config_field fields[] = {
    {.name = "path",
     .type = ONCE_CONFIG_STRING,
     .required = true,
     ONCE_CONFIG_AT(once_file_spec, path),
     .max = 4095,
     .example = "payments.ndjson",
     .text = "The file, relative to the current directory; `-` is standard input."},
    {.name = "follow",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_file_spec, follow),
     .standard = "false",
     .text = "Wait for more lines at the end of the file instead of ending, through rotation. If the file is "
             "rotated, set `cursor` too: without it a start reads only the file that has the path at that moment."},
    {.name = "cursor",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_file_spec, cursor),
     .standard = "false",
     .text = "Keep the place in the file in the store, with every commit, and continue from there at the next start."
             " For each consumer one process at a time may hold the cursor."},
    {.name = "headers",
     .type = ONCE_CONFIG_POINTER,
     ONCE_CONFIG_AT(once_file_spec, headers),
     .example = "/headers",
     .standard_text = "none",
     .text = "The object in each line whose members are the headers (`${header:NAME}`)."},
};

const once_config_section once__file_section = {
    .name = "a file source",
    .title = "file",
    .text = "One message per line: a JSON object, or with `body: bytes` any bytes but a newline. Coordinates are\n"
            "the path and the number of the line, as in `payments.ndjson:17`. Lines of standard input have no\n"
            "coordinates that survive a restart, so `${coordinates}` is refused there. Blank lines are passed\n"
            "over; with `body: bytes` they are messages, and a carriage return belongs to its line.\n"
            "\n"
            "Over time a path may name several files. The lines of the second file are at `payments.ndjson/2:1`\n"
            "and so on, so that coordinates stay unique; the store keeps the numbers of the files. A file is\n"
            "recognized by its inode, its first KiB and the bytes before the place that was reached. If a program\n"
            "wrote the file anew as a whole, with the same bytes up to that place, it counts as the same file.\n"
            "Without `follow` and `cursor` every run reads the whole file, and the file counts as a new one only\n"
            "if the previous file was renamed within the folder: so a file may be corrected and run again.\n"
            "\n"
            "If the last line has no newline, a run that ends at the end of the file handles it as a message. The\n"
            "cursor stays before it. If that line is unchanged at the next run, it is skipped; if it has grown,\n"
            "the whole line is delivered again, at the same coordinates. With `follow` a line waits for its\n"
            "newline.\n"
            "\n"
            "`follow` reads on through rotation as `tail -F` does, and loses no line. A file that was renamed is\n"
            "read to its end, until it has not grown for half a minute. If a file is truncated (copytruncate),\n"
            "its rest is looked for in a copy whose name begins with that of the file. A missing file is waited\n"
            "for. With `cursor` a start finds the rest of the previous file in the same ways, in the same folder.\n"
            "The cursor is stored before the first line is read, so this holds from the first run on. Files that\n"
            "had the path in between, however many, are found if they were created and written to after the\n"
            "previous file, and if their names are that of the file with a number or a date (`payments.ndjson.1`,\n"
            "`payments.ndjson-20260102`, `payments-2.ndjson`) or `.old`. If the rest of a file is not found, or a\n"
            "file in between is compressed, a warning is logged. Not noticed are files in between that were\n"
            "deleted or have another name, an empty file that was written and truncated between two looks at it,\n"
            "and other content with the same first KiB and the same bytes before the place. Files may be renamed\n"
            "during this search: the folder is read until it stays the same for a moment.\n"
            "\n"
            "The cursor and the numbers of files are kept for the consumer and the path as it is written here,\n"
            "whatever the host and the folder: so the next pod continues. But hosts that share a store on a\n"
            "server and each have a file of that path are not told apart: a line of one has the coordinates of a\n"
            "line of another, and with `${coordinates}` in the key one of them would not run. Give each host its\n"
            "own `consumer`, or add a field with the host to `tenant` or `key`.",
    .fields = fields,
    .n = sizeof fields / sizeof *fields,
};

static bool is_stdin(const once_file_spec *file) { return once_bytes_equal(file->path, ONCE_BYTES("-")); }

void once__file_conclude(once_source_spec *source)
{
    const once_file_spec *file = once_file_of(source);
    source->name = file->path;
    source->headers = file->headers;
    source->bits = (file->follow ? 0u : ONCE_SOURCE_FINITE) | (file->cursor ? ONCE_SOURCE_CURSOR : 0u);
    if (is_stdin(file)) source->unstable = "standard input has none that stay the same; use fields, or a file";
}

static void refuse_stdin(once_config *config, const once_node *map, const char *name, const char *why)
{
    const once_node *node = once_node_member(map, name);
    once_config_wrong(config, ONCE_E_CONFIG, node ? node->line : map->line,
                      "'%s' is for files: standard input %s; remove it", name, why);
}

void once__file_check(once_config *config, const once_node *map, const once_source_spec *source)
{
    const once_file_spec *file = once_file_of(source);
    if (file->follow && is_stdin(file)) refuse_stdin(config, map, "follow", "is read until it ends");
    if (file->cursor && is_stdin(file)) refuse_stdin(config, map, "cursor", "has no place to go on from");
}

void once__file_doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user)
{
    const once_file_spec *file = once_file_of(source);
    if (file->follow && !file->cursor)
        warn(user,
             "'follow' without 'cursor': after a restart only the file that is then at this path is read, and unread "
             "lines of a rotated file are skipped; write 'cursor: true'");
    if (shared)
        warn(user,
             "${coordinates} are the path as it is written and the line: if machines that share this store each have "
             "a file of that path, their lines are taken for the same; give each machine a consumer of its own, or a "
             "tenant or key with the host in it");
}

const once_source_kind once__source_file = {
    .name = "file",
    .summary = "NDJSON, one message a line; '-' is standard input",
    .unit = "bytes",
    .ops = &once__file_ops,
    .field = {.name = "file",
              .type = ONCE_CONFIG_SECTION,
              .section = &once__file_section,
              .example = "{path: payments.ndjson}",
              .text = "Lines of a file, or of standard input."},
    .size = sizeof(once_file_spec),
    .conclude = once__file_conclude,
    .check = once__file_check,
    .doubts = once__file_doubts,
    .repeats = "another file at the same path",
    .has = once__file_has,
};
