/* The files of profiles, ~/.aws/credentials and ~/.aws/config:
 *
 *     [default]                 a section; other profiles are [NAME] in the first file, [profile NAME] in the second
 *     region = eu-central-1     a property; space around its name and value does not count
 *     # or ;                    a comment, on a line of its own
 *     s3 =
 *       max_queue_size = 10     a line that is indented more than the property before it belongs to that; not used here
 *
 * As for AWS's own tools, all properties of a section may be indented.
 *
 * The files are searched anew for each property: they are small. */
#include "aws/aws_impl.h"

#include <assert.h>
#include <errno.h>

#include "base/ascii.h"
#include "base/buf.h"
#include "base/value.h"

#include "base/banned.h"

static int read_text(const once_env *env, once_bytes path, bool named, once_arena *arena, once_bytes *out,
                     once_error *err)
{
    if (!path.len) return ONCE_OK;
    const char *why = once_file_read(env, path.data, arena, out);
    if (!why || errno == ENOENT || errno == ENOTDIR) return ONCE_OK;
    const int status = errno == ENOMEM ? ONCE_E_NOMEM : errno == EACCES && !named ? ONCE_E_MISSING : ONCE_E_CONFIG;
    return once_fail(err, status, "cannot read file '%s': %s", path.data, why);
}

int once__aws_read_profiles(const once_aws_settings *settings, const once_env *env, once_arena *arena,
                            once_aws_profiles *out, once_error *err)
{
    assert(settings && env && arena && out);
    *out = (once_aws_profiles){0};
    const bool named = settings->profile_named;
    const int rc = read_text(env, settings->credentials_file, named, arena, &out->credentials, err);
    return rc == ONCE_OK ? read_text(env, settings->config_file, named, arena, &out->config, err) : rc;
}

static once_bytes trim(once_bytes text)
{
    while (text.len && once_ascii_is_space(text.data[0])) text = (once_bytes){text.data + 1, text.len - 1};
    while (text.len && once_ascii_is_space(text.data[text.len - 1])) text.len--;
    return text;
}

static once_bytes next_line(once_bytes *rest)
{
    const char *end = memchr(rest->data, '\n', rest->len);
    const size_t len = end ? (size_t)(end - rest->data) : rest->len;
    const once_bytes line = {rest->data, len};
    const size_t used = end ? len + 1 : len;
    *rest = (once_bytes){rest->data + used, rest->len - used};
    return line;
}

/* The profile that a section is of; empty: of none. */
static once_bytes profile_of(once_bytes line, bool config)
{
    const char *end = memchr(line.data, ']', line.len);
    assert(line.len && line.data[0] == '[');
    if (!end) return (once_bytes){0};
    once_bytes name = trim((once_bytes){line.data + 1, (size_t)(end - line.data) - 1});
    if (!config || once_bytes_equal(name, ONCE_BYTES("default"))) return name;
    if (name.len <= 8 || memcmp(name.data, "profile", 7) != 0 || !once_ascii_is_space(name.data[7]))
        return (once_bytes){0};
    name = trim((once_bytes){name.data + 8, name.len - 8});
    const char quote = name.data[0];
    if (name.len > 2 && (quote == '"' || quote == '\'') && name.data[name.len - 1] == quote)
        name = (once_bytes){name.data + 1, name.len - 2};
    return name;
}

static size_t indent_of(once_bytes line)
{
    size_t n = 0;
    while (n < line.len && once_ascii_is_space(line.data[n])) n++;
    return n;
}

/* The next section or property, without the space around it; empty: the text has no more. *indent: of the last
 * property of the section, SIZE_MAX: none yet. */
static once_bytes next_entry(once_bytes *rest, size_t *indent)
{
    while (rest->len) {
        const once_bytes line = next_line(rest), plain = trim(line);
        const size_t by = indent_of(line);
        if (!plain.len || plain.data[0] == '#' || plain.data[0] == ';') continue;
        if (by > *indent) continue; /* it belongs to the property before it */
        *indent = plain.data[0] == '[' ? SIZE_MAX : by;
        return plain;
    }
    return (once_bytes){0};
}

/* The last value of a property. `property` NULL: only whether the profile is there. */
static bool search(once_bytes text, bool config, once_bytes profile, const char *property, once_bytes *out)
{
    bool inside = false, found = false;
    size_t indent = SIZE_MAX;
    if (once_ascii_begins(text.data, text.len, ONCE_BOM)) text = (once_bytes){text.data + 3, text.len - 3};
    for (once_bytes entry; (entry = next_entry(&text, &indent)).len;) {
        if (entry.data[0] == '[') {
            inside = once_bytes_equal(profile_of(entry, config), profile);
            if (inside && !property) return true;
            continue;
        }
        const char *equals = memchr(entry.data, '=', entry.len);
        if (!inside || !property || !equals) continue;
        const once_bytes name = trim((once_bytes){entry.data, (size_t)(equals - entry.data)});
        if (!once_ascii_is(name.data, name.len, property)) continue;
        *out = trim((once_bytes){equals + 1, entry.len - (size_t)(equals - entry.data) - 1});
        found = out->len > 0;
    }
    return found;
}

bool once__aws_has_profile(const once_aws_profiles *profiles, once_bytes name)
{
    assert(name.len);
    once_bytes unused;
    return search(profiles->credentials, false, name, NULL, &unused) ||
           search(profiles->config, true, name, NULL, &unused);
}

once_bytes once__aws_property(const once_aws_profiles *profiles, once_bytes profile, const char *name)
{
    assert(profile.len);
    once_bytes value;
    if (search(profiles->credentials, false, profile, name, &value)) return value;
    if (search(profiles->config, true, profile, name, &value)) return value;
    return (once_bytes){0};
}
