/* SPDX-License-Identifier: Apache-2.0 */
/* A block's life: single transitions, all states of a small cache, and that the walk through them
 * misses every guard that is taken away. usage: test-life [docs/life.md] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/life_model.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum {
    F = HR_LIFE_FREE,
    O = HR_LIFE_OPEN,
    U = HR_LIFE_FULL,
    S = HR_LIFE_SEALED,
    D = HR_LIFE_DYING
};
enum { N = HR_LIFE_NONE, C = HR_LIFE_COMING, T = HR_LIFE_THERE };

/* {phase, device, lower, held, pins, owners} before and after; FORBIDDEN: nothing changes. */
#define FORBIDDEN                                                                                  \
    {                                                                                              \
        UINT8_MAX, 0, 0, 0, 0, 0                                                                   \
    }

static const struct {
    enum hr_life_event event;
    struct hr_life from, to;
} cases[] = {
    /* A new block: taken, placed, written to, and kept or dropped. */
    {HR_LIFE_TAKE, {F, N, N, 0, 0, 0}, {O, N, N, 1, 0, 1}},
    {HR_LIFE_TAKE, {O, T, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_PLACE, {O, N, N, 1, 0, 1}, {O, T, N, 1, 0, 1}},
    {HR_LIFE_PLACE, {O, N, T, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_WRITE, {O, N, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_WRITE, {O, T, N, 1, 0, 1}, {O, T, N, 1, 0, 1}},
    {HR_LIFE_FILL, {O, T, N, 1, 0, 1}, {U, T, N, 1, 0, 1}},
    {HR_LIFE_WRITE, {U, T, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_COMMIT, {O, N, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_COMMIT, {O, T, N, 1, 0, 1}, {O, T, N, 0, 0, 1}},
    {HR_LIFE_COMMIT, {U, T, N, 1, 0, 1}, {S, T, N, 0, 0, 1}},
    {HR_LIFE_DROP, {O, N, N, 1, 0, 1}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_DROP, {U, T, N, 1, 0, 1}, {F, N, N, 0, 0, 0}},
    /* The open block of a sequence: held by one step, its copy below stale from the first append.
     */
    {HR_LIFE_HOLD, {O, T, N, 0, 0, 1}, {O, T, N, 1, 0, 1}},
    {HR_LIFE_HOLD, {O, N, T, 0, 0, 1}, {O, N, T, 1, 0, 1}},
    {HR_LIFE_HOLD, {O, T, C, 0, 0, 1}, {O, T, C, 1, 0, 1}},
    {HR_LIFE_HOLD, {O, T, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_HOLD, {O, T, N, 0, 0, 2}, FORBIDDEN},
    {HR_LIFE_HOLD, {S, T, N, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_WRITE, {O, T, N, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_WRITE, {O, T, T, 1, 0, 1}, {O, T, N, 1, 0, 1}},
    {HR_LIFE_WRITE, {O, T, C, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_WRITE, {O, T, T, 1, 1, 1}, FORBIDDEN},
    {HR_LIFE_WRITE, {O, N, T, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_BACK, {O, T, N, 1, 0, 1}, {O, T, N, 0, 0, 1}},
    {HR_LIFE_BACK, {U, N, T, 1, 0, 1}, {O, N, T, 0, 0, 1}},
    {HR_LIFE_BACK, {U, T, C, 1, 0, 1}, {O, T, C, 0, 0, 1}},
    {HR_LIFE_BACK, {S, T, N, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_REOPEN, {S, T, T, 0, 1, 1}, {O, T, T, 0, 1, 1}},
    {HR_LIFE_REOPEN, {S, N, T, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_REOPEN, {S, T, C, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_REOPEN, {S, T, N, 0, 0, 2}, FORBIDDEN},
    {HR_LIFE_REOPEN, {U, T, N, 1, 0, 1}, FORBIDDEN},
    /* Owners. */
    {HR_LIFE_SHARE, {S, N, T, 0, 0, 1}, {S, N, T, 0, 0, 2}},
    {HR_LIFE_SHARE, {O, T, N, 0, 0, 1}, {O, T, N, 0, 0, 2}},
    {HR_LIFE_SHARE, {O, T, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_SHARE, {U, T, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_DROP, {S, T, C, 0, 0, 2}, {S, T, C, 0, 0, 1}},
    {HR_LIFE_DROP, {S, T, T, 0, 0, 1}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_DROP, {F, N, N, 0, 0, 0}, FORBIDDEN},
    /* Moves: what is committed or full; what a step appends to stays. */
    {HR_LIFE_EVICT, {S, T, N, 0, 0, 2}, {S, T, C, 0, 0, 2}},
    {HR_LIFE_EVICT, {U, T, N, 1, 0, 1}, {U, T, C, 1, 0, 1}},
    {HR_LIFE_EVICT, {O, T, N, 0, 0, 1}, {O, T, C, 0, 0, 1}},
    {HR_LIFE_EVICT, {O, T, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_EVICT, {S, T, T, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_EVICT, {S, C, T, 0, 1, 1}, FORBIDDEN},
    {HR_LIFE_WRITTEN, {U, T, C, 1, 0, 1}, {U, T, T, 1, 0, 1}},
    {HR_LIFE_WRITE_FAILED, {S, T, C, 0, 0, 1}, {S, T, N, 0, 0, 1}},
    {HR_LIFE_WRITTEN, {S, T, N, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_LEAVE, {S, T, T, 0, 1, 1}, {S, N, T, 0, 1, 1}},
    {HR_LIFE_LEAVE, {S, T, C, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_LEAVE, {O, T, T, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_FORGET, {S, T, T, 0, 0, 1}, {S, T, N, 0, 0, 1}},
    {HR_LIFE_FORGET, {S, T, T, 0, 1, 1}, FORBIDDEN},
    {HR_LIFE_FORGET, {S, N, T, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_FETCH, {S, N, T, 0, 1, 1}, {S, C, T, 0, 2, 1}},
    {HR_LIFE_FETCH, {U, N, T, 1, 0, 1}, {U, C, T, 1, 1, 1}},
    {HR_LIFE_FETCH, {O, N, T, 1, 0, 1}, {O, C, T, 1, 1, 1}},
    {HR_LIFE_FETCH, {O, N, N, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_FETCHED, {S, C, T, 0, 2, 1}, {S, T, T, 0, 1, 1}},
    {HR_LIFE_FETCH_FAILED, {O, C, T, 1, 1, 1}, {O, N, T, 1, 0, 1}},
    {HR_LIFE_STREAM, {U, N, T, 1, 2, 1}, {U, N, T, 1, 3, 1}},
    {HR_LIFE_STREAM, {S, T, C, 0, 0, 1}, FORBIDDEN},
    {HR_LIFE_STREAM, {O, T, T, 1, 0, 1}, FORBIDDEN},
    {HR_LIFE_STREAMED, {S, C, T, 0, 2, 1}, {S, C, T, 0, 1, 1}},
    {HR_LIFE_STREAMED, {S, C, T, 0, 1, 1}, FORBIDDEN},
    /* Without an owner: only the ends of its transfers, the last of which frees it. */
    {HR_LIFE_DROP, {U, T, C, 1, 0, 1}, {D, T, C, 0, 0, 0}},
    {HR_LIFE_DROP, {S, C, T, 0, 2, 1}, {D, C, T, 0, 2, 0}},
    {HR_LIFE_FETCHED, {D, C, T, 0, 2, 0}, {D, T, T, 0, 1, 0}},
    {HR_LIFE_FETCHED, {D, C, T, 0, 1, 0}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_FETCH_FAILED, {D, C, T, 0, 1, 0}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_STREAMED, {D, T, T, 0, 2, 0}, {D, T, T, 0, 1, 0}},
    {HR_LIFE_STREAMED, {D, T, T, 0, 1, 0}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_WRITTEN, {D, T, C, 0, 0, 0}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_WRITE_FAILED, {D, T, C, 0, 0, 0}, {F, N, N, 0, 0, 0}},
    {HR_LIFE_LEAVE, {D, T, T, 0, 1, 0}, FORBIDDEN},
    {HR_LIFE_SHARE, {D, T, T, 0, 1, 0}, FORBIDDEN},
};

static bool same(const struct hr_life *a, const struct hr_life *b)
{
    return a->phase == b->phase && a->device == b->device && a->lower == b->lower &&
           a->held == b->held && a->pins == b->pins && a->refs == b->refs;
}

static void test_transitions(void **state)
{
    for (int i = 0; i < LENGTH(cases); i++) {
        struct hr_life life = cases[i].from;
        bool allowed = cases[i].to.phase != UINT8_MAX;
        bool ok = hr_life_apply(&life, cases[i].event) == allowed &&
                  same(&life, allowed ? &cases[i].to : &cases[i].from);
        if (!ok)
            fail_msg("case %d, %s: now phase %d device %d lower %d held %d pins %d owners %d", i,
                     hr_life_event_name(cases[i].event), life.phase, life.device, life.lower,
                     life.held, life.pins, (int)life.refs);
    }
}

/* All lives that events can make of a free block, with at most 2 owners and 1 pin besides a fetch.
 * Returns how many are not among `seen`. */
static int unseen_lives(const bool *seen, struct hr_life *example)
{
    static struct hr_life lives[LIFE_RECORDS];
    bool listed[LIFE_RECORDS] = {true};
    int n = 1, unseen = 0;
    memset(lives, 0, sizeof lives);
    for (int i = 0; i < n; i++) {
        if (!seen[life_record(&lives[i])]) {
            unseen++;
            *example = lives[i];
        }
        for (int e = 0; e < HR_LIFE_EVENTS; e++) {
            struct hr_life next = lives[i];
            bool taken = hr_life_apply(&next, (enum hr_life_event)e);
            assert_true(taken || same(&next, &lives[i]));
            if (next.refs > 2 || next.pins > 1 + (next.device == HR_LIFE_COMING) ||
                listed[life_record(&next)])
                continue;
            listed[life_record(&next)] = true;
            lives[n++] = next;
        }
    }
    print_message("%d lives of a block\n", n);
    return unseen;
}

static void test_all_states(void **state)
{
    static const struct life_size sizes[] = {{3, 3, 2, 2}, {3, 3, 3, 3}};
    static struct life_findings f;
    for (int i = 0; i < LENGTH(sizes); i++) {
        struct hr_life unseen;
        life_walk(&sizes[i], -1, &f);
        print_message("%d blocks of %d rows, %d slots and %d below: %llu states, %llu transitions, "
                      "%.1f MB\n",
                      sizes[i].blocks, sizes[i].rows, sizes[i].device_slots, sizes[i].lower_slots,
                      (unsigned long long)f.states, (unsigned long long)f.transitions,
                      (double)f.bytes / 1e6);
        if (f.violation[0])
            fail_msg("%s: %s", f.violation, f.path);
        for (int e = 0; e < HR_LIFE_EVENTS; e++)
            assert_true(f.applied[e] > 0);
        /* All but a block that is called full before it has a copy. */
        assert_int_equal(unseen_lives(f.seen, &unseen), 1);
        assert_true(same(&unseen, &(struct hr_life){U, N, N, 1, 0, 1}));
    }
}

static void test_every_guard_counts(void **state)
{
    static const struct life_size size = {2, 3, 2, 2};
    static struct life_findings f;
    int missed = 0;
    life_walk(&size, -1, &f);
    assert_string_equal(f.violation, "");
    assert_true(hr_life_guards() > HR_LIFE_EVENTS);
    for (int guard = 0; guard < hr_life_guards(); guard++) {
        life_walk(&size, guard, &f);
        missed += !f.violation[0];
        print_message("%s without \"%s\": %s\n    %s\n",
                      hr_life_event_name(hr_life_guard_event(guard)), hr_life_guard_text(guard),
                      f.violation[0] ? f.violation : "NOT FOUND", f.path);
    }
    assert_int_equal(missed, 0);
    assert_string_equal(hr_life_guard_text(hr_life_guards()), "");
}

/* The table of the documentation names the guards of the code. */
static void test_documentation(void **state)
{
    static char text[1 << 14];
    FILE *file = *state ? fopen(*state, "r") : NULL;
    if (!file)
        skip();
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (int e = 0, guard = 0; e < HR_LIFE_EVENTS; e++) {
        char row[256], *end = row + sizeof row, *at = row;
        at += snprintf(at, (size_t)(end - at), "\n| `%s` |", hr_life_event_name(e));
        for (const char *mark = ""; (int)hr_life_guard_event(guard) == e; guard++, mark = ",")
            at += snprintf(at, (size_t)(end - at), "%s %s", mark, hr_life_guard_text(guard));
        snprintf(at, (size_t)(end - at), " |");
        if (!strstr(text, row))
            fail_msg("no such row: %s", row + 1);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transitions),
        cmocka_unit_test(test_all_states),
        cmocka_unit_test(test_every_guard_counts),
        cmocka_unit_test_prestate(test_documentation, argc > 1 ? argv[1] : NULL),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
