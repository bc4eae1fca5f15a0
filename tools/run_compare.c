/* SPDX-License-Identifier: Apache-2.0 */
/* --compare: the same run with all K and V in memory must give the same bits. */
#include "tools/run.h"

#include <stdlib.h>
#include <string.h>

/* The same questions, without answers. */
static bool copy_branches(const struct run_options *from, struct run_options *to)
{
    to->n_branches = 0;
    to->branches = calloc((size_t)from->n_branches + 1, sizeof(*to->branches));
    for (int i = 0; to->branches && i < from->n_branches; i++)
        to->branches[to->n_branches++] =
            (struct run_branch){.kind = from->branches[i].kind, .text = from->branches[i].text};
    return to->branches != NULL;
}

static bool same_tokens(const struct tokens *a, const struct tokens *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof(*a->ids)) == 0);
}

static bool same(const struct run *a, const struct run *b)
{
    bool equal = a->logits_hash == b->logits_hash && memcmp(&a->nll, &b->nll, sizeof(a->nll)) == 0;
    for (int i = 0; i < a->options.n_branches; i++)
        equal =
            equal && same_tokens(&a->options.branches[i].output, &b->options.branches[i].output);
    return equal;
}

bool run_compare(struct run *run)
{
    struct run again = {.start_ns = run_now_ns(), .options = run->options};
    struct run_options *o = &again.options;
    o->json = o->trace = o->dump_tokens = o->dump_logits = o->io = NULL;
    o->compare = false;
    o->kv_ram = 0;
    o->n_disks = 0;
    if (!copy_branches(&run->options, o))
        return run_fail(run, "out of memory");
    bool ok = run_prepare(&again) && run_document(&again) && run_branches(&again);
    if (!ok)
        run_fail(run, "the run with all K/V in memory: %s", again.error);
    run->identical = ok && same(run, &again);
    run->resident_prefill_ns = again.prefill_ns;
    run_close(&again);
    return ok;
}
