/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets: numbers for what is on the device's work queue. Who wants to use a slot in another way
 * than by that queue (a file is read into it, or written from it) waits for the ticket of the last
 * work that touched it. */
#ifndef HR_OFFLOAD_TICKET_H
#define HR_OFFLOAD_TICKET_H

#include "src/dev/dev.h"

enum {
    HR_TICKETS_LIVE = 16
}; /* events: numbers that can be told apart; older ones are waited for */

struct hr_tickets {
    struct hr_dev *dev;
    struct hr_dev_event *events[HR_TICKETS_LIVE];
    uint64_t issued; /* the last number given out; the first one is 1 */
    uint64_t done;   /* all up to this one are */
};

/* False: an event could not be made. */
bool hr_tickets_init(struct hr_tickets *t, struct hr_dev *dev);
void hr_tickets_close(struct hr_tickets *t);

/* The number of all that is on the work queue now. */
uint64_t hr_tickets_issue(struct hr_tickets *t);
/* Whether work `number` (0: none) is done; looks. */
bool hr_tickets_done(struct hr_tickets *t, uint64_t number);
/* Waits for it until the clock shows `deadline_ns`. */
enum hr_dev_wait hr_tickets_wait(struct hr_tickets *t, uint64_t number, int64_t deadline_ns);

#endif
