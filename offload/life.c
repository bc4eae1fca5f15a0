/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/life.h"

/* What a guard can ask for. */
enum fact {
    FREE,
    OWNED,
    OPEN,
    SEALED,
    HELD,
    NOT_HELD,
    ONE_OWNER,
    NOT_APPENDED,
    ANY_COPY,
    DEVICE_NONE,
    DEVICE_COMING,
    DEVICE_THERE,
    LOWER_NONE,
    LOWER_COMING,
    LOWER_THERE,
    NOT_EVICTED,
    UNPINNED,
    RING_PIN,
    FACTS,
};

static const char *const fact_texts[FACTS] = {
    [FREE] = "free",
    [OWNED] = "owned",
    [OPEN] = "open",
    [SEALED] = "sealed",
    [HELD] = "held",
    [NOT_HELD] = "not held",
    [ONE_OWNER] = "one owner",
    [NOT_APPENDED] = "not both open and held",
    [ANY_COPY] = "a copy is there",
    [DEVICE_NONE] = "no device copy",
    [DEVICE_COMING] = "device copy coming",
    [DEVICE_THERE] = "device copy there",
    [LOWER_NONE] = "no lower copy",
    [LOWER_COMING] = "lower copy coming",
    [LOWER_THERE] = "lower copy there",
    [NOT_EVICTED] = "lower copy not coming",
    [UNPINNED] = "no pin",
    [RING_PIN] = "a pin besides the fetch",
};

static uint32_t facts_of(const struct hr_life *l)
{
    uint32_t facts = 0;
    facts |= (uint32_t)(l->phase == HR_LIFE_FREE) << FREE;
    facts |= (uint32_t)(l->refs > 0) << OWNED;
    facts |= (uint32_t)(l->phase == HR_LIFE_OPEN) << OPEN;
    facts |= (uint32_t)(l->phase == HR_LIFE_SEALED) << SEALED;
    facts |= (uint32_t)(l->held) << HELD;
    facts |= (uint32_t)(!l->held) << NOT_HELD;
    facts |= (uint32_t)(l->refs == 1) << ONE_OWNER;
    facts |= (uint32_t)(!l->held || l->phase != HR_LIFE_OPEN) << NOT_APPENDED;
    facts |= (uint32_t)(l->device == HR_LIFE_THERE || l->lower == HR_LIFE_THERE) << ANY_COPY;
    facts |= (uint32_t)(l->device == HR_LIFE_NONE) << DEVICE_NONE;
    facts |= (uint32_t)(l->device == HR_LIFE_COMING) << DEVICE_COMING;
    facts |= (uint32_t)(l->device == HR_LIFE_THERE) << DEVICE_THERE;
    facts |= (uint32_t)(l->lower == HR_LIFE_NONE) << LOWER_NONE;
    facts |= (uint32_t)(l->lower == HR_LIFE_COMING) << LOWER_COMING;
    facts |= (uint32_t)(l->lower == HR_LIFE_THERE) << LOWER_THERE;
    facts |= (uint32_t)(l->lower != HR_LIFE_COMING) << NOT_EVICTED;
    facts |= (uint32_t)(l->pins == 0) << UNPINNED;
    facts |= (uint32_t)(l->pins > (l->device == HR_LIFE_COMING)) << RING_PIN;
    return facts;
}

/* What an event needs and does. A field that it sets holds the value plus one; 0: it stays. */
struct rule {
    const char *name;
    uint32_t needs;
    uint8_t phase, device, lower, held;
    int8_t pins, refs;
};

#define IS(fact) (1u << (fact))
#define TO(value) ((value) + 1)
/* COMMIT, for the phase: full becomes sealed, open stays. */
#define SEAL UINT8_MAX

static const struct rule rules[HR_LIFE_EVENTS] = {
    [HR_LIFE_TAKE] = {"TAKE", IS(FREE), .phase = TO(HR_LIFE_OPEN), .held = TO(1), .refs = 1},
    [HR_LIFE_PLACE] = {"PLACE", IS(OWNED) | IS(DEVICE_NONE) | IS(LOWER_NONE),
                       .device = TO(HR_LIFE_THERE)},
    [HR_LIFE_HOLD] = {"HOLD", IS(OPEN) | IS(NOT_HELD) | IS(ONE_OWNER), .held = TO(1)},
    [HR_LIFE_WRITE] = {"WRITE",
                       IS(HELD) | IS(OPEN) | IS(DEVICE_THERE) | IS(NOT_EVICTED) | IS(UNPINNED),
                       .lower = TO(HR_LIFE_NONE)},
    [HR_LIFE_FILL] = {"FILL", IS(HELD), .phase = TO(HR_LIFE_FULL)},
    [HR_LIFE_COMMIT] = {"COMMIT", IS(HELD) | IS(ANY_COPY), .phase = SEAL, .held = TO(0)},
    [HR_LIFE_BACK] = {"BACK", IS(HELD) | IS(ANY_COPY), .phase = TO(HR_LIFE_OPEN), .held = TO(0)},
    [HR_LIFE_REOPEN] = {"REOPEN", IS(SEALED) | IS(ONE_OWNER) | IS(DEVICE_THERE) | IS(NOT_EVICTED),
                        .phase = TO(HR_LIFE_OPEN)},
    [HR_LIFE_SHARE] = {"SHARE", IS(OWNED) | IS(NOT_HELD), .refs = 1},
    [HR_LIFE_DROP] = {"DROP", IS(OWNED), .refs = -1},
    [HR_LIFE_EVICT] = {"EVICT", IS(DEVICE_THERE) | IS(LOWER_NONE) | IS(NOT_APPENDED),
                       .lower = TO(HR_LIFE_COMING)},
    [HR_LIFE_WRITTEN] = {"WRITTEN", IS(LOWER_COMING), .lower = TO(HR_LIFE_THERE)},
    [HR_LIFE_WRITE_FAILED] = {"WRITE_FAILED", IS(LOWER_COMING), .lower = TO(HR_LIFE_NONE)},
    [HR_LIFE_LEAVE] = {"LEAVE", IS(OWNED) | IS(DEVICE_THERE) | IS(LOWER_THERE) | IS(NOT_APPENDED),
                       .device = TO(HR_LIFE_NONE)},
    [HR_LIFE_FORGET] = {"FORGET", IS(DEVICE_THERE) | IS(LOWER_THERE) | IS(UNPINNED),
                        .lower = TO(HR_LIFE_NONE)},
    [HR_LIFE_FETCH] = {"FETCH", IS(OWNED) | IS(DEVICE_NONE) | IS(LOWER_THERE),
                       .device = TO(HR_LIFE_COMING), .pins = 1},
    [HR_LIFE_FETCHED] = {"FETCHED", IS(DEVICE_COMING), .device = TO(HR_LIFE_THERE), .pins = -1},
    [HR_LIFE_FETCH_FAILED] = {"FETCH_FAILED", IS(DEVICE_COMING), .device = TO(HR_LIFE_NONE),
                              .pins = -1},
    [HR_LIFE_STREAM] = {"STREAM", IS(OWNED) | IS(LOWER_THERE) | IS(NOT_APPENDED), .pins = 1},
    [HR_LIFE_STREAMED] = {"STREAMED", IS(RING_PIN), .pins = -1},
};

static void set_field(uint8_t *field, uint8_t to)
{
    if (to)
        *field = (uint8_t)(to - 1);
}

/* Without an owner a block goes, at the latest with the end of its last transfer. */
static void let_go(struct hr_life *l)
{
    bool quiet = l->lower != HR_LIFE_COMING && l->pins == 0;
    *l = quiet
             ? (struct hr_life){0}
             : (struct hr_life){
                   .phase = HR_LIFE_DYING, .device = l->device, .lower = l->lower, .pins = l->pins};
}

static void change(struct hr_life *l, const struct rule *rule)
{
    if (rule->phase != SEAL)
        set_field(&l->phase, rule->phase);
    else if (l->phase == HR_LIFE_FULL)
        l->phase = HR_LIFE_SEALED;
    set_field(&l->device, rule->device);
    set_field(&l->lower, rule->lower);
    if (rule->held)
        l->held = rule->held == TO(1);
    l->pins = (uint16_t)(l->pins + rule->pins);
    l->refs = (uint32_t)((int64_t)l->refs + rule->refs);
    if (l->refs == 0)
        let_go(l);
}

/* Guards are counted event by event, and within one by fact. */
static bool find_guard(int guard, enum hr_life_event *event, enum fact *fact)
{
    for (int e = 0; guard >= 0 && e < HR_LIFE_EVENTS; e++) {
        uint32_t needs = rules[e].needs;
        int n = __builtin_popcount(needs);
        if (guard >= n) {
            guard -= n;
            continue;
        }
        while (guard-- > 0)
            needs &= needs - 1;
        *event = (enum hr_life_event)e;
        *fact = (enum fact)__builtin_ctz(needs);
        return true;
    }
    return false;
}

bool hr_life_apply_without(struct hr_life *life, enum hr_life_event event, int guard)
{
    uint32_t needs = rules[event].needs;
    enum hr_life_event of;
    enum fact fact;
    if (find_guard(guard, &of, &fact) && of == event)
        needs &= ~IS(fact);
    if (needs & ~facts_of(life))
        return false;
    change(life, &rules[event]);
    return true;
}

bool hr_life_apply(struct hr_life *life, enum hr_life_event event)
{
    return hr_life_apply_without(life, event, -1);
}

int hr_life_guards(void)
{
    int n = 0;
    for (int e = 0; e < HR_LIFE_EVENTS; e++)
        n += __builtin_popcount(rules[e].needs);
    return n;
}

enum hr_life_event hr_life_guard_event(int guard)
{
    enum hr_life_event event = HR_LIFE_EVENTS;
    enum fact fact;
    find_guard(guard, &event, &fact);
    return event;
}

const char *hr_life_guard_text(int guard)
{
    enum hr_life_event event;
    enum fact fact;
    return find_guard(guard, &event, &fact) ? fact_texts[fact] : "";
}

const char *hr_life_event_name(enum hr_life_event event)
{
    return rules[event].name;
}
