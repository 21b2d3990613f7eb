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
     .text = "Wait for more lines at the end of the file instead of ending, through rotation. With rotation, `cursor` "
             "too: a start without it reads only "
             "the file that has the path then."},
    {.name = "cursor",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_file_spec, cursor),
     .standard = "false",
     .text = "Keep the place in the file in the store, with every commit, and go on from there next time. One process "
             "at a time holds it, for each consumer."},
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
    .text = "One JSON object per line. Coordinates are the path and the number of the line, as in "
            "`payments.ndjson:17`; standard input has none\n"
            "that survive a restart, so `${coordinates}` is refused there.\n"
            "\n"
            "A path may name one file after the other. The lines of its second file are at `payments.ndjson/2:1` and "
            "so on, so that coordinates\n"
            "stay unique; the store keeps the numbers. A file is known by its inode, its first KiB and the bytes "
            "before the place that was\n"
            "reached. One that was written anew as a whole, with the same bytes up to there, is the same file. Without "
            "`follow` and `cursor` every run\n"
            "reads the whole file, and it is another one only when the one before was renamed in its folder: so a file "
            "may be corrected and run again.\n"
            "\n"
            "A last line without a newline is a message of a run that ends at the end of the file. The cursor stays "
            "before it: a line that is found\n"
            "as it was is not handed out again, and one that has grown since is a message again, as a whole and at the "
            "same coordinates. With\n"
            "`follow` a line waits for its newline.\n"
            "\n"
            "`follow` goes through rotation as `tail -F` does, and loses nothing of it: a file that was renamed is "
            "read to its end, and for half a\n"
            "minute after its last growth, before it is left; when a file is truncated (copytruncate), its rest is "
            "looked for in a copy whose name\n"
            "begins with that of the file; a file that is missing is waited for. With `cursor` a start finds the rest "
            "of the file before in the\n"
            "same ways, in the same folder. The cursor is there before anything is read, so that this holds from the "
            "first run on. Files that had the\n"
            "path in between, however many, are found when their names are that of the file with a number or a date "
            "(`payments.ndjson.1`,\n"
            "`payments.ndjson-20260102`, `payments-2.ndjson`) or `.old`, and they were made and written to after the "
            "file before. What is not\n"
            "found, or is compressed, is said in the log. Not noticed are: files in between that were deleted or have "
            "another name, an empty file that was\n"
            "written and truncated before it was looked at again, and other content with the same first KiB and the "
            "same bytes before the place.\n"
            "Files may be renamed while they are looked for: the folder is read until it stays the same for a moment.\n"
            "\n"
            "The cursor and the numbers of files are kept for the consumer and the path as it is written here, "
            "whatever the host and the folder: the next\n"
            "pod goes on. Machines that share a store on a server and have each a file of that path are not told apart "
            "by it: a line of one has the\n"
            "coordinates of a line of another, and with `${coordinates}` in the key one of them would not run. Give "
            "each machine a `consumer` of its\n"
            "own, or a field with the host in `tenant` or `key`.",
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
             "'follow' without 'cursor': a start reads only the file that has the path then, and not what was left "
             "of one that was rotated away; say 'cursor: true'");
    if (shared)
        warn(user,
             "${coordinates} are the path as it is written and the line: if machines that share this store each have "
             "a file of that path, their lines are taken for the same; give each machine a consumer of its own, or a "
             "tenant or key with the host in it");
}

const once_source_kind once__source_file = {
    .name = "file",
    .summary = "NDJSON, one message a line; '-' is standard input",
    .ops = &once__file_ops,
    .field = {.name = "file",
              .type = ONCE_CONFIG_SECTION,
              .scope = &once__file_section,
              .example = "{path: payments.ndjson}",
              .text = "Lines of a file, or of standard input."},
    .size = sizeof(once_file_spec),
    .conclude = once__file_conclude,
    .check = once__file_check,
    .doubts = once__file_doubts,
    .has = once__file_has,
};
