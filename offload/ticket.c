/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/ticket.h"

bool hr_tickets_init(struct hr_tickets *t, struct hr_dev *dev)
{
    *t = (struct hr_tickets){.dev = dev};
    for (int i = 0; i < HR_TICKETS_LIVE; i++) {
        t->events[i] = dev->ops->event_make(dev);
        if (!t->events[i]) {
            hr_tickets_close(t);
            return false;
        }
    }
    return true;
}

void hr_tickets_close(struct hr_tickets *t)
{
    for (int i = 0; i < HR_TICKETS_LIVE; i++)
        if (t->events[i])
            t->dev->ops->event_free(t->dev, t->events[i]);
    *t = (struct hr_tickets){0};
}

enum hr_dev_wait hr_tickets_wait(struct hr_tickets *t, uint64_t number, int64_t deadline_ns)
{
    while (t->done < number) {
        enum hr_dev_wait how = t->dev->ops->event_wait(
            t->dev, t->events[(t->done + 1) % HR_TICKETS_LIVE], deadline_ns);
        if (how != HR_DEV_DONE)
            return how;
        t->done++;
    }
    return HR_DEV_DONE;
}

bool hr_tickets_done(struct hr_tickets *t, uint64_t number)
{
    return hr_tickets_wait(t, number, 0) == HR_DEV_DONE;
}

uint64_t hr_tickets_issue(struct hr_tickets *t)
{
    if (t->issued - t->done == HR_TICKETS_LIVE)
        hr_tickets_wait(t, t->done + 1, INT64_MAX);
    t->issued++;
    t->dev->ops->event_record(t->dev, t->events[t->issued % HR_TICKETS_LIVE], HR_DEV_WORK);
    return t->issued;
}
