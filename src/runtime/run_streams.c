/* The streams of a run by name: showing them, and logging that they are assigned, released or paused for long. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "runtime/run.h"

#include "base/banned.h"

#define STUCK_MS 60000 /* a stream that is paused for longer is stuck behind a message */
#define LOOK_MS 1000   /* how often to look for such streams */

void once__stream_name(once_source *source, uint32_t stream, char out[ONCE_STREAM_NAME])
{
    const char *name = source->ops->stream_name ? source->ops->stream_name(source, stream) : NULL;
    if (name) (void)snprintf(out, ONCE_STREAM_NAME, "%s", name);
    else (void)snprintf(out, ONCE_STREAM_NAME, "%" PRIu32, stream);
}

/* --- what is shown --- */

static const char *word_of(once_stream_change state)
{
    switch (state) {
    case ONCE_STREAM_ASSIGNED: return "assigned";
    case ONCE_STREAM_REVOKED: return "revoked";
    case ONCE_STREAM_LOST: return "lost";
    }
    assert(false);
    return "";
}

int64_t once__run_left(once_run *r, uint64_t *n, uint64_t *paused) /* @locks: lock */
{
    assert(r->machine && r->source);
    int64_t left = -1;
    once_stream_view view;
    *n = *paused = 0;
    for (uint32_t at = 0; once_machine_next_stream(r->machine, &at, once__run_now_ms(r), &view);) {
        const int64_t lag = r->source->ops->lag(r->source, view.number);
        if (lag >= 0) left = (left < 0 ? 0 : left) + lag;
        ++*n;
        *paused += view.paused_ms > 0;
    }
    return left;
}

typedef struct shown {
    char name[ONCE_STREAM_NAME], parts[ONCE_LAG_PARTS];
    once_stream_shown stream;
} shown;

static int copy_streams(once_run *r, shown **out, size_t *n, once_error *err) /* @locks: lock */
{
    once_stream_view view;
    size_t size = 0;
    *n = 0;
    for (uint32_t at = 0; r->machine && once_machine_next_stream(r->machine, &at, once__run_now_ms(r), &view);) {
        if (*n == size) {
            size = size ? 2 * size : 16;
            shown *more = realloc(*out, size * sizeof *more);
            if (!more) return once_no_memory(err, "for a list of streams");
            *out = more;
        }
        shown *one = &(*out)[(*n)++];
        once__stream_name(r->source, view.number, one->name);
        one->parts[0] = '\0';
        if (r->source->ops->lag_parts) r->source->ops->lag_parts(r->source, view.number, one->parts);
        one->stream = (once_stream_shown){.state = word_of(view.state),
                                          .left = r->source->ops->lag(r->source, view.number),
                                          .open = view.open,
                                          .paused_ms = view.paused_ms,
                                          .unit = r->source->spec->source.kind->unit};
    }
    return ONCE_OK;
}

int once_pipeline_streams(once_pipeline *pipeline, once_stream_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_streams needs a pipeline and a function for its streams");
    once_run *r = pipeline->run;
    shown *list = NULL;
    size_t n;
    int rc = once__run_refuse_forked(r, err);
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&r->lock);
    rc = copy_streams(r, &list, &n, err);
    pthread_mutex_unlock(&r->lock);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        list[i].stream.name = list[i].name;
        list[i].stream.parts = list[i].parts;
        if (!visit(user, &list[i].stream)) break;
    }
    free(list);
    return rc;
}

/* --- what is logged --- */

/* Called before the machine gets the news, because that frees them. */
void once__run_report_news(once_run *r, const once_action *done) /* @locks: lock */
{
    if (done->kind != ONCE_ACT_FETCH || done->status != ONCE_OK) return;
    if (!(r->source->ops->bits(r->source) & ONCE_SOURCE_ASSIGNS)) return; /* its only stream is never reassigned */
    for (size_t i = 0; i < done->n_news; i++) {
        const once_stream_news *news = &done->news[i];
        char name[ONCE_STREAM_NAME], within[ONCE_DURATION_TEXT];
        once__stream_name(r->source, news->stream, name);
        if (news->change == ONCE_STREAM_ASSIGNED)
            once_log(ONCE_LOG_INFO, "stream_assigned", "this worker now reads stream '%s'", name);
        else if (news->change == ONCE_STREAM_REVOKED)
            once_log(ONCE_LOG_INFO, "stream_revoked",
                     "stream '%s' moves to another worker and is released within %s: open transactions finish, waiting "
                     "messages are delivered there again",
                     name, once_duration_format(news->within_ms, within));
        else
            once_log(ONCE_LOG_WARN, "stream_lost",
                     "stream '%s' is lost to this worker: another one may read it already, or the source no longer has "
                     "it as it was; nothing more of it is acked, and effects in flight go on under their fence",
                     name);
    }
}

void once__run_report_release(const char *name, int status)
{
    if (status == ONCE_OK) once_log(ONCE_LOG_INFO, "stream_released", "stream '%s' is released", name);
}

/* Logs the stream that is paused for longest when more are stuck than before, and when none is stuck. */
void once__run_report_stuck(once_run *r) /* @locks: lock */
{
    assert(r->machine && r->source);
    const int64_t now_ms = once__run_now_ms(r);
    once_stream_view view, worst = {0};
    size_t stuck = 0;
    if (now_ms < r->stuck_look_ms) return;
    r->stuck_look_ms = now_ms + LOOK_MS;
    for (uint32_t at = 0; once_machine_next_stream(r->machine, &at, now_ms, &view);) {
        if (view.paused_ms < STUCK_MS) continue;
        stuck++;
        if (view.paused_ms > worst.paused_ms) worst = view;
    }
    if (stuck > r->stuck_said) {
        char name[ONCE_STREAM_NAME], paused[ONCE_DURATION_TEXT];
        once__stream_name(r->source, worst.number, name);
        once_log(ONCE_LOG_WARN, "stream_stuck",
                 "stream '%s' has been paused for %s: %" PRIu64
                 " of its messages are in flight and not acked%s; %zu stream%s %s paused. Other streams go on; 'once "
                 "list' shows what it waits for",
                 name, once_duration_format(worst.paused_ms / 1000 * 1000, paused), worst.open,
                 r->source->ops->bits(r->source) & ONCE_SOURCE_SINGLE_ACKS
                     ? ""
                     : ", and the first unfinished one holds back the acks behind it",
                 stuck, stuck == 1 ? "" : "s", stuck == 1 ? "is" : "are");
    } else if (stuck == 0 && r->stuck_said) {
        once_log(ONCE_LOG_WARN, "stream_goes_on", "no stream is paused any longer");
    }
    r->stuck_said = stuck;
}
