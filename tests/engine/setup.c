/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/setup.h"

#include "src/base/clock.h"

const char *setup_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder ? folder : "/tmp";
}

const hr_options *setup_context(const struct setup_options *o)
{
    enum { FOLDERS_MAX = 4 };
    static hr_disk disks[FOLDERS_MAX];
    static hr_options options;
    for (int i = 0; i < FOLDERS_MAX; i++)
        disks[i] = (hr_disk){.path = setup_folder(), .bytes = o->disk_extents << 21};
    options = (hr_options){
        .struct_size = sizeof(options),
        .threads = o->threads ? o->threads : 2,
        .unbound = true,
        .device_bytes = o->device_extents << 21,
        .allocator = o->allocator,
        .disks = o->disk_extents ? disks : NULL,
        .n_disks = o->disk_extents == 0 ? 0
                   : o->folders         ? o->folders
                                        : 1,
        .io = o->io,
        .manual_progress = o->manual || (o->hooks && o->hooks->sim),
        .debug_wave_blocks = o->wave_blocks,
        .trace = o->trace,
        .trace_user = o->trace_user,
    };
    return &options;
}

hr_cache_options setup_cache(const struct setup_options *o)
{
    return (hr_cache_options){
        .struct_size = sizeof(hr_cache_options),
        .layer_size = sizeof(o->layers[0]),
        .layers = o->layers,
        .n_layers = o->n_layers,
    };
}

void setup_open(struct setup *s, const struct setup_options *o)
{
    struct hr_error error = {0};
    hr_cache_options cache = setup_cache(o);
    if (hr_context_open(setup_context(o), o->hooks, &error, &s->c) != HR_OK)
        fail_msg("%s", error.text);
    if (hr_cache_create(s->c, &cache, &s->cache) != HR_OK)
        fail_msg("%s", hr_error_text(s->c));
    assert_int_equal(hr_step_create(s->cache, &o->limits, &s->step), HR_OK);
    assert_int_equal(hr_seq_create(s->cache, &s->seq), HR_OK);
}

void setup_close(struct setup *s)
{
    assert_int_equal(hr_seq_destroy(&s->seq), HR_OK);
    assert_int_equal(hr_step_destroy(&s->step), HR_OK);
    assert_int_equal(s->c->kv_bytes_used, 0);
    assert_int_equal(hr_cache_destroy(&s->cache), HR_OK);
    assert_int_equal(s->c->extents.used_count, 0);
    if (s->c->tier)
        assert_int_equal(s->c->tier->extents.used_count, 0);
    assert_int_equal(hr_close(&s->c), HR_OK);
}

void setup_settle(hr_context *c)
{
    assert_int_equal(hr_poll(c, hr_clock_ns() + 10000000000), HR_OK);
    assert_true(!c->tier || hr_mover_running(c->tier->mover) == 0);
}

/* How many sequences' tables have each block of a pool. */
static void count_owners(const hr_cache *cache, int32_t pool, uint32_t *owners)
{
    for (const hr_seq *s = cache->first_seq; s; s = s->next)
        for (int32_t l = 0; l < cache->n_layers; l++)
            for (int64_t b = 0; b < hr_blocks_of(s->length); b++)
                if (hr_cache_pool_of(cache, l) == pool)
                    owners[hr_seq_blocks(s, l)[b]]++;
}

static void audit_block(const struct hr_block *x, uint32_t owners)
{
    const struct hr_life *life = &x->life;
    assert_int_equal(life->refs, owners);
    assert_int_equal(life->pins, 0);
    assert_false(life->held);
    if (owners == 0) {
        assert_int_equal(life->phase, HR_LIFE_FREE);
        return;
    }
    assert_true(life->phase == HR_LIFE_OPEN || life->phase == HR_LIFE_SEALED);
    assert_true(life->device != HR_LIFE_COMING && life->lower != HR_LIFE_COMING);
    assert_true(life->device == HR_LIFE_THERE || life->lower == HR_LIFE_THERE);
    assert_int_equal(x->slot != HR_BLOCK_NONE, life->device == HR_LIFE_THERE);
    assert_int_equal(x->lower != HR_BLOCK_NONE, life->lower == HR_LIFE_THERE);
}

static void audit_tiered(const struct hr_tiered *t, uint64_t above, uint64_t below)
{
    assert_int_equal(t->lower.blocks->slots.slots_used, above + t->ring.size);
    assert_int_equal(t->lower.slots.slots_used, below);
    assert_int_equal(t->lower.first_leaving, HR_BLOCK_NONE);
    assert_int_equal(t->lower.leaving, 0);
    assert_int_equal(t->lower.writing, 0);
    assert_int_equal(t->ring.coming, 0);
    assert_int_equal(t->reserved, 0);
}

void setup_audit(const hr_cache *cache)
{
    uint64_t bytes = 0;
    for (int32_t p = 0; p < cache->n_pools; p++) {
        const struct hr_blocks *pool = &cache->pools[p];
        uint32_t *owners = calloc(pool->high + 1, sizeof(*owners));
        uint64_t used = 0, above = 0, below = 0;
        count_owners(cache, p, owners);
        for (uint32_t b = 0; b < pool->high; b++) {
            audit_block(&pool->all[b], owners[b]);
            used += owners[b] > 0;
            above += owners[b] > 0 && pool->all[b].slot != HR_BLOCK_NONE;
            below += owners[b] > 0 && pool->all[b].lower != HR_BLOCK_NONE;
        }
        free(owners);
        assert_false(pool->broken);
        assert_int_equal(pool->used, used);
        assert_int_equal(pool->owned, used);
        bytes += used * hr_blocks_bytes(pool);
        if (cache->n_tiered)
            audit_tiered(&cache->tiered[p], above, below);
    }
    assert_int_equal(cache->context->kv_bytes_used, bytes);
}
