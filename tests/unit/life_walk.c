/* SPDX-License-Identifier: Apache-2.0 */
/* The walk through all states of life_model.h, breadth first over a set of compact keys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/life_model.h"

enum { BLOCKS = LIFE_BLOCKS, ROWS = LIFE_ROWS, SEQS = LIFE_SEQS, PATH_MAX_STEPS = 64 };

/* States as keys: blocks are numbered in the order of the sequences' lists, the sequences in the
 * order that gives the smaller key; of a row it matters only whether it is the one that is seen. A
 * state is kept only when nothing is wrong with it, so the rest of the record follows from these.
 */
struct key {
    uint32_t word[BLOCKS + SEQS];
};

struct bits {
    uint32_t word;
    int n;
};

static void put(struct bits *to, int bits, uint32_t value)
{
    to->word |= value << to->n;
    to->n += bits;
}

static uint32_t get(struct bits *from, int bits)
{
    uint32_t value = from->word >> from->n & ((1u << bits) - 1);
    from->n += bits;
    return value;
}

/* The entries that own a block; in a key, of a step that holds also how its first was before. */
static int owning(const struct life_seq *q)
{
    return q->n + (q->step == LIFE_STEP_REPLACES);
}

static int stored(const struct life_seq *q)
{
    return q->n + (q->step == LIFE_STEP_REPLACES || q->step == LIFE_STEP_HOLDS);
}

static const struct life_entry *entry_of(const struct life_seq *q, int i)
{
    return i < q->n ? &q->entry[i] : &q->old;
}

/* The rows of each block that any sequence sees. */
static void list_seen(const struct life_world *w, struct life_rows seen[BLOCKS])
{
    memset(seen, 0, BLOCKS * sizeof *seen);
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < owning(&w->seq[s]); i++) {
            const struct life_entry *e = entry_of(&w->seq[s], i);
            memcpy(seen[e->block].id, e->rows.id, e->n);
        }
}

static void put_rows(struct bits *to, const struct life_rows *rows, const struct life_rows *seen)
{
    uint32_t same = 0;
    for (int r = 0; r < ROWS; r++)
        same |= (uint32_t)(seen->id[r] != 0 && rows->id[r] == seen->id[r]) << r;
    put(to, ROWS, same);
}

static void get_rows(struct bits *from, struct life_rows *rows, int b)
{
    for (int r = 0; r < ROWS; r++)
        rows->id[r] = (uint8_t)(get(from, 1) ? 1 + b * ROWS + r : 0);
}

static uint32_t pack_block(const struct life_block *x, const struct life_rows *seen)
{
    struct bits bits = {0};
    put(&bits, 3, x->life.phase);
    put(&bits, 2, x->life.device);
    put(&bits, 2, x->life.lower);
    put(&bits, 1, x->stream.runs);
    put(&bits, 1, x->ready);
    put_rows(&bits, &x->device, seen);
    put_rows(&bits, &x->lower, seen);
    put_rows(&bits, &x->evict.early, seen);
    put_rows(&bits, &x->fetch.early, seen);
    put_rows(&bits, &x->stream.early, seen);
    return bits.word;
}

static void unpack_block(uint32_t word, struct life_block *x, int b)
{
    struct bits bits = {word, 0};
    x->life.phase = (uint8_t)get(&bits, 3);
    x->life.device = (uint8_t)get(&bits, 2);
    x->life.lower = (uint8_t)get(&bits, 2);
    x->stream.runs = get(&bits, 1);
    x->ready = get(&bits, 1);
    get_rows(&bits, &x->device, b);
    get_rows(&bits, &x->lower, b);
    get_rows(&bits, &x->evict.early, b);
    get_rows(&bits, &x->fetch.early, b);
    get_rows(&bits, &x->stream.early, b);
    x->device_slot = x->life.device != HR_LIFE_NONE;
    x->lower_slot = x->life.lower != HR_LIFE_NONE;
    x->evict.runs = x->life.lower == HR_LIFE_COMING;
    x->fetch.runs = x->life.device == HR_LIFE_COMING;
    x->life.pins = (uint16_t)(x->fetch.runs + x->stream.runs);
}

static uint32_t pack_seq(const struct life_seq *q, const int place[BLOCKS])
{
    struct bits bits = {0};
    put(&bits, 2, q->n);
    put(&bits, 2, q->step);
    put(&bits, 2, q->step != LIFE_STEP_NONE ? q->first : 0);
    for (int i = 0; i < stored(q); i++) {
        put(&bits, 2, (uint32_t)place[entry_of(q, i)->block]);
        put(&bits, 2, entry_of(q, i)->n);
    }
    return bits.word;
}

static void unpack_seq(uint32_t word, struct life_world *w, struct life_seq *q)
{
    struct bits bits = {word, 0};
    q->n = (uint8_t)get(&bits, 2);
    q->step = (uint8_t)get(&bits, 2);
    q->first = (uint8_t)get(&bits, 2);
    for (int i = 0; i < stored(q); i++) {
        struct life_entry *e = i < q->n ? &q->entry[i] : &q->old;
        e->block = (uint8_t)get(&bits, 2);
        e->n = (uint8_t)get(&bits, 2);
        for (int r = 0; r < e->n; r++)
            e->rows.id[r] = (uint8_t)(1 + e->block * ROWS + r);
        w->block[e->block].life.refs += i < owning(q);
        w->block[e->block].life.held |= i < q->n && life_holds(q, i);
    }
}

/* Blocks without an owner follow, the larger word first. */
static struct key pack_in_order(const struct life_world *w, const uint32_t words[BLOCKS], int first)
{
    struct key key = {{0}};
    int place[BLOCKS] = {-1, -1, -1}, n = 0;
    for (int s = 0; s < SEQS; s++) {
        const struct life_seq *q = &w->seq[first ^ s];
        for (int i = 0; i < owning(q); i++) {
            int b = entry_of(q, i)->block;
            if (place[b] < 0) {
                key.word[n] = words[b];
                place[b] = n++;
            }
        }
        key.word[BLOCKS + s] = pack_seq(q, place);
    }
    for (int b = 0, owned = n; b < BLOCKS; b++) {
        if (place[b] >= 0)
            continue;
        int at = n++;
        for (; at > owned && key.word[at - 1] < words[b]; at--)
            key.word[at] = key.word[at - 1];
        key.word[at] = words[b];
    }
    return key;
}

static struct key pack(const struct life_world *w)
{
    struct life_rows seen[BLOCKS];
    uint32_t words[BLOCKS];
    list_seen(w, seen);
    for (int b = 0; b < BLOCKS; b++)
        words[b] = pack_block(&w->block[b], &seen[b]);
    struct key x = pack_in_order(w, words, 0), y = pack_in_order(w, words, 1);
    return memcmp(&x, &y, sizeof x) < 0 ? x : y;
}

static void unpack(const struct key *key, struct life_world *w)
{
    memset(w, 0, sizeof *w);
    for (int b = 0; b < BLOCKS; b++)
        unpack_block(key->word[b], &w->block[b], b);
    for (int s = 0; s < SEQS; s++)
        unpack_seq(key->word[BLOCKS + s], w, &w->seq[s]);
}

/* The model comes first, so that its transitions find the walk that they are of. */
struct walk {
    struct life_model model;
    struct life_findings *found;
    struct key *keys; /* of the states, in the order in which they were found */
    uint32_t *parents;
    uint32_t *table; /* hash table: number of a state + 1 */
    uint32_t n, capacity, table_size, at;
    /* Going the way again: */
    const struct key *target; /* NULL: the transition that is wrong */
    struct life_world reached;
    bool stepped;
};

static uint32_t slot_of(const struct walk *k, const struct key *key)
{
    uint64_t h = 0;
    for (int i = 0; i < BLOCKS + SEQS; i++) {
        h = (h ^ key->word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    uint32_t slot = (uint32_t)h & (k->table_size - 1);
    while (k->table[slot] && memcmp(&k->keys[k->table[slot] - 1], key, sizeof *key) != 0)
        slot = (slot + 1) & (k->table_size - 1);
    return slot;
}

static void *grow(void *memory, size_t bytes)
{
    memory = realloc(memory, bytes);
    if (!memory)
        abort();
    return memory;
}

static void make_room(struct walk *k)
{
    if (k->n < k->capacity)
        return;
    k->capacity = k->capacity ? 2 * k->capacity : 1 << 12;
    k->table_size = 2 * k->capacity;
    k->keys = grow(k->keys, k->capacity * sizeof *k->keys);
    k->parents = grow(k->parents, k->capacity * sizeof *k->parents);
    k->table = grow(k->table, k->table_size * sizeof *k->table);
    memset(k->table, 0, k->table_size * sizeof *k->table);
    for (uint32_t i = 0; i < k->n; i++)
        k->table[slot_of(k, &k->keys[i])] = i + 1;
}

static void insert(struct walk *k, const struct key *key)
{
    make_room(k);
    uint32_t slot = slot_of(k, key);
    if (k->table[slot])
        return;
    k->keys[k->n] = *key;
    k->parents[k->n] = k->at;
    k->table[slot] = ++k->n;
}

static void explore(struct life_model *m, struct life_world *w, struct life_label label)
{
    struct walk *k = (struct walk *)m;
    if (k->found->violation[0])
        return;
    k->found->transitions++;
    life_check(m, w);
    if (m->wrong) {
        snprintf(k->found->violation, sizeof k->found->violation, "%s", m->wrong);
        return;
    }
    struct key key = pack(w);
    insert(k, &key);
}

static void add_label(struct life_findings *found, struct life_label label)
{
    char block[8] = "", seq[16] = "", count[16] = "";
    size_t n = strlen(found->path);
    if (label.block >= 0)
        snprintf(block, sizeof block, " %c", 'a' + label.block);
    if (label.n >= 0)
        snprintf(count, sizeof count, " %d", label.n);
    if (label.seq >= 0)
        snprintf(seq, sizeof seq, " by %d", label.seq + 1);
    snprintf(found->path + n, sizeof found->path - n, "%s%s%s%s%s", n ? ", " : "", label.what,
             block, count, seq);
}

/* Finds the transition that leads to the target. Blocks keep their names along the way. */
static void retrace(struct life_model *m, struct life_world *w, struct life_label label)
{
    struct walk *k = (struct walk *)m;
    if (k->stepped)
        return;
    life_check(m, w);
    struct key key = pack(w);
    if (k->target ? memcmp(&key, k->target, sizeof key) != 0 : !m->wrong)
        return;
    k->stepped = true;
    k->reached = *w;
    add_label(k->found, label);
}

static void write_path(struct walk *k, bool in_drain)
{
    uint32_t way[PATH_MAX_STEPS];
    int n = 0;
    struct life_world w;
    for (uint32_t i = k->at; i != 0 && n < PATH_MAX_STEPS; i = k->parents[i])
        way[n++] = i;
    memset(&w, 0, sizeof w);
    k->model.emit = retrace;
    for (; n >= (in_drain ? 1 : 0); n--) {
        k->target = n > 0 ? &k->keys[way[n - 1]] : NULL;
        k->stepped = false;
        k->model.wrong = NULL;
        life_try_all(&k->model, &w);
        w = k->reached;
    }
    if (in_drain)
        add_label(k->found, (struct life_label){"end everything", -1, -1, -1});
}

void life_walk(const struct life_size *size, int guard, struct life_findings *found)
{
    struct walk k = {.model = {.size = size, .guard = guard, .emit = explore}, .found = found};
    struct key empty = {{0}};
    struct life_world w;
    bool in_drain = false;
    memset(found, 0, sizeof *found);
    for (insert(&k, &empty); k.at < k.n; k.at++) {
        unpack(&k.keys[k.at], &w);
        for (int b = 0; b < size->blocks; b++)
            found->seen[life_record(&w.block[b].life)] = true;
        life_try_all(&k.model, &w);
        if (found->violation[0])
            break;
        life_check_drain(&k.model, &w);
        in_drain = k.model.wrong != NULL;
        if (in_drain) {
            snprintf(found->violation, sizeof found->violation, "%s", k.model.wrong);
            break;
        }
    }
    found->states = k.n;
    found->bytes = (sizeof *k.keys + sizeof *k.parents + 2 * sizeof *k.table) * k.capacity;
    memcpy(found->applied, k.model.applied, sizeof found->applied);
    if (found->violation[0])
        write_path(&k, in_drain);
    free(k.keys);
    free(k.parents);
    free(k.table);
}
