/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_predict.h"

/* Products of a step of `rows`: between those of decode (which read the weights for few rows) and
 * those of the prefill step that was timed. */
static double products(const struct run_costs *c, int64_t rows)
{
    double slope = c->rows > c->seqs ? (c->step - c->decode) / (double)(c->rows - c->seqs) : 0;
    if (slope <= 0)
        return c->step * (double)rows / (double)c->rows;
    double s = c->decode + slope * (double)(rows - c->seqs);
    return s > 0 ? s : 0;
}

static double compute(const struct run_costs *c, const struct run_planned *s)
{
    double rows = (double)s->rows, attention = c->row * rows + c->pair * s->pairs;
    switch (s->kind) {
    case RUN_PLANNED_DOCUMENT:
        return c->document_row * rows + attention;
    case RUN_PLANNED_BRANCH:
        return products(c, s->rows) + attention;
    default:
        return products(c, s->rows) + c->key * s->pairs;
    }
}

static double transfer(const struct run_costs *c, const struct run_planned *s)
{
    double seconds = 0;
    if (s->read_bytes)
        seconds += (double)s->read_bytes / c->stream;
    if (s->write_bytes)
        seconds += (double)s->write_bytes / c->disk.write;
    return seconds;
}

void run_predict(const struct run_costs *costs, const struct run_planned *step,
                 struct run_prediction *p)
{
    double computed = compute(costs, step), moved = transfer(costs, step);
    double seconds = computed > moved ? computed : moved;
    *(step->kind == RUN_PLANNED_DOCUMENT ? &p->document
      : step->kind == RUN_PLANNED_BRANCH ? &p->branches
                                         : &p->decode) += seconds;
    p->waited += seconds - computed;
    p->decode_steps += step->kind == RUN_PLANNED_DECODE;
}
